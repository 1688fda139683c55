/*===- DiffAttn.h - C API of diffattn -----------------------------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compile a module of MLIR, bind weights to it, ask for its signature, run it.
// See docs/c-api.md for a complete program.
//
// Functions that can fail return a class of error, 0 for none; the message is
// diffattn_last_error() of the same thread. Arguments that are arrays stay the
// caller's. A program may be used by one thread at a time, different programs
// by different threads.
//
// A null pointer where none is said to be allowed is an error of class usage
// that names the parameter. Without a program or graph, functions that give
// something else than a status leave that message and give 0 for a number, null
// for a name and "" for a text. What ends or frees ignores null.
//
//===----------------------------------------------------------------------===*/

#ifndef DIFFATTN_C_DIFFATTN_H
#define DIFFATTN_C_DIFFATTN_H

#include "diffattn-c/Types.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change; the first number with changes that break callers. */
#define DIFFATTN_API_MAJOR 1
#define DIFFATTN_API_MINOR 15

/* major * 1000 + minor of the library that was loaded. */
DIFFATTN_EXPORT int32_t diffattn_api_version(void);
/* Versions of the project, MLIR and the GEMM library, for humans. */
DIFFATTN_EXPORT const char *diffattn_version_text(void);

/*===-- Errors ------------------------------------------------------------===*/

/* Message of the last call of this thread that failed; valid until the next. */
DIFFATTN_EXPORT const char *diffattn_last_error(void);

/*===-- Options -----------------------------------------------------------===*/

typedef struct diffattn_options diffattn_options;
DIFFATTN_EXPORT diffattn_options *diffattn_options_create(void);
DIFFATTN_EXPORT void diffattn_options_destroy(diffattn_options *options);
/* Sets an option by name and text, as "threads" and "2"; truth values are true
   and false. The names, with types, limits and help, are those that
   diffattn_options_describe gives. Of weights, each call adds one. Weights that
   are given so are only checked: diffattn_bind_weights binds them. */
DIFFATTN_EXPORT int32_t diffattn_options_set(diffattn_options *options,
                                             const char *name,
                                             const char *value);
/* The options as text, a line each: name, type (text, number, truth, list or
   choice), limits ("0..4096", "auto|true|false" or none), "key" where it
   changes the code and so the key of the cache, else "-", and help; tabs
   between them. */
DIFFATTN_EXPORT const char *diffattn_options_describe(void);

/* The parameters of an op's size_bounds for a call of so many queries and keys,
   as text: "min_queries = 9". A module with them has half of the code, and is
   for all calls of that kind. Valid until the next call in this thread. */
DIFFATTN_EXPORT const char *diffattn_call_size_bounds(int64_t queries,
                                                      int64_t keys);

/*===-- Programs ----------------------------------------------------------===*/

typedef struct diffattn_program diffattn_program;

/* Compiles MLIR, text or bytecode, or takes it from the cache, and loads it.
   `options` may be null. */
DIFFATTN_EXPORT int32_t diffattn_compile(const char *ir, size_t ir_bytes,
                                         const diffattn_options *options,
                                         diffattn_program **program);
DIFFATTN_EXPORT void diffattn_program_destroy(diffattn_program *program);

/* The compiler's messages, one a line, without what went well; never null. A
   program from the cache has the messages of its compilation. */
DIFFATTN_EXPORT const char *
diffattn_program_diagnostics(const diffattn_program *program);

typedef enum diffattn_diagnostic_kind {
  DIFFATTN_NOTE = 0,
  DIFFATTN_WARNING = 1,
  DIFFATTN_MISSED = 2,   /* an optimization that was not applied, and why */
  DIFFATTN_ANALYSIS = 3, /* how one was applied that could be better */
  DIFFATTN_PASSED = 4,   /* one that was applied */
} diffattn_diagnostic_kind;

typedef struct diffattn_diagnostic {
  int32_t kind;
  const char *category; /* diffattn-fuse, -schedule, -gpu, -cache, or mlir */
  const char *name;     /* NotRaised, SelectSchedule, ...; may be empty */
  const char *message;
  const char *location; /* "model.mlir:3:8"; empty if it is not known */
  const char *text;     /* all of it as one line */
} diffattn_diagnostic;

/* All diagnostics of the compiler: of a program, or, if that is null, of this
   thread's last diffattn_emit or diffattn_write_bundle. The texts live as long
   as the program, or until the next such call. */
DIFFATTN_EXPORT int32_t
diffattn_num_diagnostics(const diffattn_program *program);
DIFFATTN_EXPORT int32_t
diffattn_get_diagnostic(const diffattn_program *program, int32_t i,
                        diffattn_diagnostic *diagnostic);
DIFFATTN_EXPORT int32_t
diffattn_program_from_cache(const diffattn_program *program);

/* Binds weights by name. Paths: safetensors files, indices of sharded
   checkpoints, or folders. The files must stay as they are while the program
   lives. */
DIFFATTN_EXPORT int32_t diffattn_bind_weights(diffattn_program *program,
                                              const char *const *paths,
                                              int32_t count);
/* Binds weights as diffattn_bind_weights does; `progress`, which may be null,
   is called between weights with the bytes that are bound, and on a device
   copied there, and the bytes of all. */
DIFFATTN_EXPORT int32_t diffattn_bind_weights_telling(
    diffattn_program *program, const char *const *paths, int32_t count,
    void (*progress)(void *progress_data, int64_t done, int64_t total),
    void *progress_data);
/* Binds weights as diffattn_bind_weights_telling does; as soon as `go_on`
   returns 0, it stops with an error, and the program has the weights that it
   had, on a device none. */
DIFFATTN_EXPORT int32_t diffattn_bind_weights_while(
    diffattn_program *program, const char *const *paths, int32_t count,
    int32_t (*go_on)(void *data, int64_t done, int64_t total), void *data);
/* Binds weights that lie in memory of the host, by name: dense arrays, which
   must stay as they are while the program lives or until weights are bound
   anew. What the program made of the weights it had (copies in another order)
   is freed, so this is also how it is told that they have changed. */
DIFFATTN_EXPORT int32_t
diffattn_bind_weight_arrays(diffattn_program *program, const char *const *names,
                            const diffattn_array *arrays, int32_t count);

/*===-- Signatures --------------------------------------------------------===*/

DIFFATTN_EXPORT int32_t diffattn_num_entries(const diffattn_program *program);
DIFFATTN_EXPORT const char *diffattn_entry_name(const diffattn_program *program,
                                                int32_t i);
DIFFATTN_EXPORT int32_t diffattn_num_arguments(const diffattn_program *program,
                                               const char *entry,
                                               int32_t *count);
DIFFATTN_EXPORT int32_t diffattn_num_results(const diffattn_program *program,
                                             const char *entry, int32_t *count);
DIFFATTN_EXPORT int32_t diffattn_argument_type(const diffattn_program *program,
                                               const char *entry, int32_t i,
                                               diffattn_type *type);
DIFFATTN_EXPORT int32_t diffattn_result_type(const diffattn_program *program,
                                             const char *entry, int32_t i,
                                             diffattn_type *type);

DIFFATTN_EXPORT int32_t diffattn_num_weights(const diffattn_program *program);
/* The declared name of weight `i`, {} standing for the layer. */
DIFFATTN_EXPORT const char *
diffattn_weight_name(const diffattn_program *program, int32_t i);

/*===-- Calls -------------------------------------------------------------===*/

/* `results` has room for the function's results. `threads` 0: as many as the
   runtime's default. */
DIFFATTN_EXPORT int32_t diffattn_call(diffattn_program *program,
                                      const char *entry,
                                      const diffattn_array *arguments,
                                      int32_t num_arguments, int32_t threads,
                                      diffattn_result *results,
                                      int32_t num_results);
DIFFATTN_EXPORT void diffattn_free(void *data);

/*===-- Memory on the program's device ------------------------------------===*/

/* For programs of a target cuda or cuda-sim; others get an error of class
   usage. An argument that lies in such memory has DIFFATTN_ON_DEVICE added to
   its dtype. Addresses may point into memory, sizes are in bytes. */

/* Memory with undefined contents, aligned to 256. To be freed before the
   program is destroyed; what the program was given before may still use it. */
DIFFATTN_EXPORT int32_t diffattn_memory_allocate(diffattn_program *program,
                                                 int64_t bytes,
                                                 uint64_t *address);
DIFFATTN_EXPORT int32_t diffattn_memory_free(diffattn_program *program,
                                             uint64_t address);
/* From and to memory of the host. */
DIFFATTN_EXPORT int32_t diffattn_memory_write(diffattn_program *program,
                                              uint64_t to, const void *from,
                                              int64_t bytes);
DIFFATTN_EXPORT int32_t diffattn_memory_read(diffattn_program *program,
                                             void *to, uint64_t from,
                                             int64_t bytes);
/* Sets every byte to `value`, 0 to 255. */
DIFFATTN_EXPORT int32_t diffattn_memory_fill(diffattn_program *program,
                                             uint64_t to, int32_t value,
                                             int64_t bytes);
/* Copies `rows` pieces of `bytes` bytes, which begin every `to_pitch` and
   `from_pitch` bytes and do not overlap. */
DIFFATTN_EXPORT int32_t diffattn_memory_copy(diffattn_program *program,
                                             uint64_t to, int64_t to_pitch,
                                             uint64_t from, int64_t from_pitch,
                                             int64_t bytes, int64_t rows);

/* The stream of calls and copies from now on: a CUstream, which must live until
   another one is set or the program is destroyed, or null for the program's
   own, which is the default. Waits for the stream before. A call waits for its
   work, unless all its arrays lie on the device and so do its results. */
DIFFATTN_EXPORT int32_t diffattn_memory_stream(diffattn_program *program,
                                               void *stream);

DIFFATTN_EXPORT int32_t diffattn_memory_traffic(const diffattn_program *program,
                                                diffattn_traffic *traffic);

/*===-- Calls that are captured as a graph --------------------------------===*/

/* A call with fixed arguments, of a program on a device. Its first run launches
   kernel by kernel and is then captured as a graph, which later runs launch as
   one, without allocations. Arguments are arrays on the device, used and
   updated there by every run, and dense arrays in memory of the host that the
   function does not update, which every run reads anew; all must stay where
   they are as long as the graph lives. Numbers are not taken. */
DIFFATTN_EXPORT int32_t diffattn_graph_capture(diffattn_program *program,
                                               const char *entry,
                                               const diffattn_array *arguments,
                                               int32_t num_arguments,
                                               diffattn_graph **graph);
/* Before the program is destroyed. Null is ignored. */
DIFFATTN_EXPORT void diffattn_graph_destroy(diffattn_graph *graph);

/* Runs it on the program's stream and waits. `threads` and `results` as for
   diffattn_call, but what `data` points to is the graph's: not to be freed,
   and valid until the next run. */
DIFFATTN_EXPORT int32_t diffattn_graph_launch(diffattn_graph *graph,
                                              int32_t threads,
                                              diffattn_result *results,
                                              int32_t num_results);
/* Why every run launches kernel by kernel: what the device said when the first
   one was captured. "" if it was, and before the first run. */
DIFFATTN_EXPORT const char *
diffattn_graph_fallback_reason(const diffattn_graph *graph);

/* Older names of the four functions above. */
DIFFATTN_EXPORT int32_t diffattn_replay_create(diffattn_program *program,
                                               const char *entry,
                                               const diffattn_array *arguments,
                                               int32_t num_arguments,
                                               diffattn_graph **graph);
DIFFATTN_EXPORT int32_t diffattn_replay_run(diffattn_graph *graph,
                                            int32_t threads,
                                            diffattn_result *results,
                                            int32_t num_results);
DIFFATTN_EXPORT const char *
diffattn_replay_refusal(const diffattn_graph *graph);
DIFFATTN_EXPORT void diffattn_replay_destroy(diffattn_graph *graph);

/*===-- Stages ------------------------------------------------------------===*/

/* The module after a stage of the pipeline (docs/pipelines.md); text unless the
   stage is "object" or "cubin". To be freed with diffattn_free. */
DIFFATTN_EXPORT int32_t diffattn_emit(const char *ir, size_t ir_bytes,
                                      const diffattn_options *options,
                                      const char *stage, char **out,
                                      size_t *out_bytes);

/*===-- Texts in the cache ------------------------------------------------===*/

/* Texts that a caller makes of something else at a cost, such as modules that
   were imported, kept where compiled code is: in the folder that `options` name
   as "cache", under "cache_limit". `key` is any text that says what the kept
   one follows from; this build of the library is added to it. */

/* `out` is the text that was kept under `key`, to be freed with diffattn_free;
   null if there is none, if it is damaged, and without a folder. */
DIFFATTN_EXPORT int32_t diffattn_cache_read(const diffattn_options *options,
                                            const char *key, char **out,
                                            size_t *out_bytes);
/* `description` is what `diffattn-run cache ls` shows. Where the folder cannot
   be used it is an error of class output; without one nothing is done. */
DIFFATTN_EXPORT int32_t diffattn_cache_write(const diffattn_options *options,
                                             const char *key,
                                             const char *description,
                                             const char *text,
                                             size_t text_bytes);

/*===-- Explanations ------------------------------------------------------===*/

/* Peak rates that threads of this machine reach together. */
typedef struct diffattn_roof {
  double gflops;      /* 10^9 operations a second of multiply-adds of f32 */
  double bf16_gflops; /* of products of bf16; 0: not known, as of AMX */
  double gbs;         /* 10^9 bytes a second that are read from memory */
} diffattn_roof;

/* Measures them on `threads` threads, in `seconds` for each of operations and
   reading; `bytes` are read in all, which should be more than caches hold. */
DIFFATTN_EXPORT int32_t diffattn_measure_roof(int32_t threads, int64_t bytes,
                                              double seconds,
                                              diffattn_roof *roof);

/* Explains what each attention was compiled to, and with times each product
   too, as JSON: a list of rows (docs/c-api.md), to be freed with diffattn_free.
   `facts` is JSON: the diagnostics, the module's text, and spans of runs. */
DIFFATTN_EXPORT int32_t diffattn_explain(const char *facts, size_t facts_bytes,
                                         char **rows);
/* Prints such rows, with the roof that they are beside, as a table of text. */
DIFFATTN_EXPORT int32_t diffattn_explanation_table(const char *explanation,
                                                   size_t explanation_bytes,
                                                   char **table);

/*===-- Judging -----------------------------------------------------------===*/

/* Judges what a call of `entry` gave by the module that the program was
   compiled from, interpreted in f64 before any pass (docs/numerics.md).
   `arguments` are what the call was given, as they were before it; `results`
   are what it gave, with updated arguments in their places; all lie in memory
   of the host. Weights are those of the options "weights". `matches` becomes 1
   if all results are right, else 0; `report` has a line for each of them, to be
   freed with diffattn_free. */
DIFFATTN_EXPORT int32_t
diffattn_judge(const diffattn_program *program, const char *ir, size_t ir_bytes,
               const diffattn_options *options, const char *entry,
               const diffattn_array *arguments, int32_t num_arguments,
               const diffattn_array *results, int32_t num_results,
               int32_t *matches, char **report);

/*===-- Bundles -----------------------------------------------------------===*/

/* Compiles a module and writes it with its weights as a bundle, a folder that
   runs without this library (diffattn-c/Bundle.h, docs/bundles.md). `directory`
   must not be there yet, or be empty. `weights` are paths as those of
   diffattn_bind_weights; `model_folder` may be null, or a folder whose
   config.json and tokenizer.json are added. With `copy_weights` 0 the bundle
   points at the weight files, otherwise it has them copied. */
DIFFATTN_EXPORT int32_t diffattn_write_bundle(
    const char *ir, size_t ir_bytes, const diffattn_options *options,
    const char *const *weights, int32_t num_weights, const char *model_folder,
    int32_t copy_weights, const char *directory);

/*===-- Arrays of other libraries -----------------------------------------===*/

/* How arrays of a library of Python are read, by functions of that library and
   of CPython's C API. `view` is dltensor_from_py_object_no_sync of DLPack's
   exchange API, which describes an object in a DLTensor and gives 0, or
   something else, which is an error of class input. `get` is what a type has in
   its slot Py_tp_descr_get (PyType_GetSlot), `attribute` an object of that
   type, which gives an integer for an array; `call` is PyObject_CallOneArg,
   `function` what it is to call with an array. From both, null is such an error
   too. `item` is PyTuple_GetItem, `to_int64` PyLong_AsLongLong, `release`
   Py_DecRef. The caller holds the interpreter's lock, where there is one. */
typedef struct diffattn_object_reader {
  int32_t (*view)(void *object, void *tensor);
  void *(*item)(void *tuple, intptr_t number);
  void *(*get)(void *attribute, void *object, void *type);
  void *attribute;
  void *(*call)(void *function, void *object);
  void *function;
  long long (*to_int64)(void *value);
  void (*release)(void *value);
} diffattn_object_reader;

/* A fact of an array that is read beside its address, type and shape. */
typedef enum diffattn_object_question {
  DIFFATTN_ASK_ATTRIBUTE = 1, /* the number that `attribute` gives */
  DIFFATTN_ASK_FUNCTION = 2   /* the address of what `function` gives */
} diffattn_object_question;

/* Where `count` arrays lie, what they look like, and what of it `asked[i]`, a
   sum of diffattn_object_question, names, as numbers: equal as long as
   addresses, types, sizes, strides and these are. No more than `room` numbers
   are written to `facts`; `size` is how many there are. */
DIFFATTN_EXPORT int32_t
diffattn_object_facts(const diffattn_object_reader *reader,
                      void *const *objects, const int32_t *asked, int32_t count,
                      int64_t *facts, int64_t room, int64_t *size);

/* Whether the first `count` items of a tuple are `objects`, and what
   diffattn_object_facts says of them is still `facts`, of which there are
   `size`: 1 or 0, which it is too where an item is no array any more. */
DIFFATTN_EXPORT int32_t diffattn_object_facts_hold(
    const diffattn_object_reader *reader, void *tuple, void *const *objects,
    const int32_t *asked, int32_t count, const int64_t *facts, int64_t size);

/* Describes the first `count` items of a tuple, which are arrays, as arguments
   of calls, with the element types `dtypes`, which are not compared with their
   own. They must stay as they are until the calls end. Those with a negative
   type are left as they are. */
DIFFATTN_EXPORT int32_t diffattn_describe_arrays(
    const diffattn_object_reader *reader, void *tuple, const int32_t *dtypes,
    int32_t count, diffattn_array *arrays);

/*===-- Devices -----------------------------------------------------------===*/

/* A GPU that is simulated, as the table of functions of
   DiffAttn/Runtime/ABI/Device.h, which also has the maker of a real one. `chip`
   is "sm_80" or newer. To be ended with the table's own function `close`. */
struct diffattn_device;
DIFFATTN_EXPORT int32_t
diffattn_open_simulated_device(const char *chip, struct diffattn_device **out);

#ifdef __cplusplus
}
#endif

#endif /* DIFFATTN_C_DIFFATTN_H */
