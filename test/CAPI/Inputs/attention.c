// The program of docs/c-api.md: one differential attention from C.
#include "diffattn-c/DiffAttn.h"

#include <stdio.h>
#include <string.h>

// Logits of 200 and 0 saturate both maps, so the result is exact: each row is
// one row of v minus half of another.
static const char *const module =
    "func.func @attention(%q1: tensor<1x1x2x2xf32>, %q2: tensor<1x1x2x2xf32>,\n"
    "    %k: tensor<1x1x2x2xf32>, %v: tensor<1x1x2x2xf32>, %l: tensor<f32>)\n"
    "    -> tensor<1x1x2x2xf32> {\n"
    "  %e = tensor.empty() : tensor<1x1x2x2xf32>\n"
    "  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : "
    "tensor<1x1x2x2xf32>,\n"
    "      tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>,\n"
    "      tensor<1x1x2x2xf32>) lambda(%l : tensor<f32>)\n"
    "      outs(%e : tensor<1x1x2x2xf32>) {scale = 1.0 : f32}\n"
    "      -> tensor<1x1x2x2xf32>\n"
    "  return %o : tensor<1x1x2x2xf32>\n"
    "}\n";

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, diffattn_last_error());
  return 1;
}

int main(void) {
  diffattn_options *options = diffattn_options_create();
  if (diffattn_options_set(options, "target", "cpu"))
    return fail("options");
  diffattn_program *program;
  if (diffattn_compile(module, strlen(module), options, &program))
    return fail("compile");
  diffattn_options_destroy(options);

  int32_t count;
  diffattn_type type;
  if (diffattn_num_arguments(program, "attention", &count) ||
      diffattn_argument_type(program, "attention", 1, &type))
    return fail("signature");
  printf("%d arguments, argument 1 has rank %d\n", count, type.rank);

  const int64_t shape[4] = {1, 1, 2, 2};
  float q1[4] = {200, 0, 0, 200}, q2[4] = {0, 200, 200, 0};
  float k[4] = {1, 0, 0, 1}, v[4] = {2, 4, 6, 7}, lambda = 0.5f;
  diffattn_array arguments[5] = {{q1, DIFFATTN_F32, 4, shape, NULL},
                                 {q2, DIFFATTN_F32, 4, shape, NULL},
                                 {k, DIFFATTN_F32, 4, shape, NULL},
                                 {v, DIFFATTN_F32, 4, shape, NULL},
                                 {&lambda, DIFFATTN_F32, 0, shape, NULL}};
  diffattn_result result;
  if (diffattn_call(program, "attention", arguments, 5, 0, &result, 1))
    return fail("call");
  const float *o = result.data;
  printf("[%g, %g], [%g, %g]\n", o[0], o[1], o[2], o[3]);
  diffattn_free(result.data);

  int32_t status =
      diffattn_call(program, "attention", arguments, 4, 0, &result, 1);
  printf("error %d: %s\n", status, diffattn_last_error());
  diffattn_program_destroy(program);
  return 0;
}
