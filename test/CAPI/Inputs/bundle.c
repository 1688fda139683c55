// The program of docs/bundles.md: one differential attention from a bundle.
#include "diffattn-c/Bundle.h"

#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 8, LENGTH = 4, WIDTH = 64, VALUES = 128 };

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, diffattn_bundle_last_error());
  return 1;
}

int main(int argc, char **argv) {
  diffattn_bundle *bundle;
  if (argc != 2 || diffattn_bundle_open(argv[1], NULL, &bundle))
    return fail("open");
  const char *entry = diffattn_bundle_entry_name(bundle, 0);
  int32_t count;
  if (diffattn_bundle_num_arguments(bundle, entry, &count))
    return fail("signature");
  printf("%s takes %d arguments\n", entry, count);

  // Values that are all the same are what any weights make of them; with lambda
  // 0.5, half is left. The norm over each head makes it 1, the scale 0.8.
  const int64_t narrow[4] = {1, HEADS, LENGTH, WIDTH};
  const int64_t wide[4] = {1, HEADS, LENGTH, VALUES};
  const int64_t heads[1] = {HEADS};
  float *zeros = calloc(HEADS * LENGTH * WIDTH, sizeof *zeros);
  float *values = malloc(HEADS * LENGTH * VALUES * sizeof *values);
  float lambda[HEADS];
  for (int i = 0; i < HEADS * LENGTH * VALUES; ++i)
    values[i] = 3;
  for (int i = 0; i < HEADS; ++i)
    lambda[i] = 0.5f;
  diffattn_array arguments[6] = {{zeros, DIFFATTN_F32, 4, narrow, NULL},
                                 {zeros, DIFFATTN_F32, 4, narrow, NULL},
                                 {zeros, DIFFATTN_F32, 4, narrow, NULL},
                                 {zeros, DIFFATTN_F32, 4, narrow, NULL},
                                 {values, DIFFATTN_F32, 4, wide, NULL},
                                 {lambda, DIFFATTN_F32, 1, heads, NULL}};
  diffattn_result result;
  if (diffattn_bundle_call(bundle, entry, arguments, count, 0, &result, 1))
    return fail("call");
  printf("rank %d, first element %.3f\n", result.rank,
         ((float *)result.data)[0]);
  diffattn_bundle_free(result.data);

  int32_t status =
      diffattn_bundle_call(bundle, entry, arguments, 5, 0, &result, 1);
  printf("error %d: %s\n", status, diffattn_bundle_last_error());
  uint64_t address = 0;
  status = diffattn_bundle_memory_allocate(bundle, 64, &address);
  printf("error %d: %s\n", status, diffattn_bundle_last_error());
  diffattn_bundle_close(bundle);
  free(zeros);
  free(values);
  return 0;
}
