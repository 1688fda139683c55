// The compiler's diagnostics of a module, through the C API.
#include "diffattn-c/DiffAttn.h"

#include <stdio.h>
#include <string.h>

// A head of 1025 gets no kernel.
static const char *const module =
    "!t = tensor<1x1x2x1025xf32>\n"
    "func.func @attention(%q: !t, %l: tensor<f32>, %e: !t) -> !t {\n"
    "  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t)\n"
    "      lambda(%l : tensor<f32>) outs(%e : !t) {scale = 1.0 : f32} -> !t\n"
    "  return %o : !t\n"
    "}\n";

static void print(const diffattn_program *program) {
  diffattn_diagnostic said;
  for (int32_t i = 0; i < diffattn_num_diagnostics(program); ++i)
    if (!diffattn_get_diagnostic(program, i, &said))
      printf("%d %s %s at %s\n", said.kind, said.category, said.name,
             said.location);
  if (diffattn_get_diagnostic(program, 1000, &said) == DIFFATTN_ERROR_USAGE)
    printf("%s\n", diffattn_last_error());
}

int main(void) {
  diffattn_program *program;
  char *text;
  size_t bytes;
  if (diffattn_compile(module, strlen(module), NULL, &program) ||
      diffattn_emit(module, strlen(module), NULL, "raised", &text, &bytes))
    return 1;
  printf("program\n");
  print(program);
  printf("%s", diffattn_program_diagnostics(program));
  printf("raised\n");
  print(NULL);
  diffattn_free(text);
  if (diffattn_emit(module, strlen(module), NULL, "scheduled", &text, &bytes))
    return 1;
  printf("scheduled\n");
  print(NULL);
  diffattn_free(text);
  diffattn_program_destroy(program);
  return 0;
}
