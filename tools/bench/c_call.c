/* The time of a call by the C interface, for a caller that waits for each: c_call ADDRESS TABLE MS pulls that dense table for
   so long, through messages and not shared memory, and prints the median of the microseconds that a pull took. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "worker/capi/lodestone.h"

#define TIMES_MAX 1000000

static double NowUs(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static void Check(int code) {
  if (code == LODESTONE_OK) return;
  fprintf(stderr, "c_call: %s\n", lodestone_error_message());
  exit(1);
}

static void Pull(lodestone_client* client, const lodestone_destination* destination) {
  lodestone_call* call = NULL;
  int done = 0;
  Check(lodestone_pull(client, destination, 1, &call));
  Check(lodestone_call_wait(call, -1, &done));
  lodestone_call_release(call);
}

static int Compare(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: c_call ADDRESS TABLE MS\n");
    return 2;
  }
  char config[512];
  snprintf(config, sizeof(config), "coordinator: {address: \"%s\"}\ncluster: {shared_memory: false}", argv[1]);
  lodestone_client* client = NULL;
  lodestone_table* table = NULL;
  Check(lodestone_observe(config, &client));
  Check(lodestone_table_find(client, argv[2], &table));
  float* const values = calloc(lodestone_table_elements(table), sizeof(float));
  double* const times = malloc(TIMES_MAX * sizeof(double));
  if (values == NULL || times == NULL) return 1;
  const lodestone_destination destination = {.table = table, .values = values};
  Pull(client, &destination); /* Makes the connection. */
  const double end = NowUs() + 1000 * atof(argv[3]);
  size_t count = 0;
  for (double begin = NowUs(); count == 0 || (begin < end && count < TIMES_MAX);) {
    Pull(client, &destination);
    const double now = NowUs();
    times[count++] = now - begin;
    begin = now;
  }
  qsort(times, count, sizeof(double), Compare);
  printf("%.3f\n", times[count / 2]);
  free(times);
  free(values);
  lodestone_disconnect(client);
  return 0;
}
