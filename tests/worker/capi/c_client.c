/* A program in C that trains with a cluster: c_client ADDRESS. Exit code 0 if everything was as lodestone.h says. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/capi/lodestone.h"

#define EXPECT(condition)                                                                    \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, lodestone_error_message()); \
      return 1;                                                                              \
    }                                                                                        \
  } while (0)

static int WaitFor(lodestone_call* call) {
  int done = 0;
  const int status = lodestone_call_wait(call, -1, &done);
  return status == LODESTONE_OK && !done ? LODESTONE_INTERNAL : status;
}

static void CountDone(lodestone_call* call, void* user) {
  (void)call;
  __atomic_add_fetch((int*)user, 1, __ATOMIC_RELAXED);
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  EXPECT(lodestone_abi() == LODESTONE_ABI);
  lodestone_client* client = NULL;
  EXPECT(lodestone_connect("{\"coordinator\": {}}", &client) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(strstr(lodestone_error_message(), "coordinator.address") != NULL);
  EXPECT(lodestone_connect("coordinator: {adress: x}", &client) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(strstr(lodestone_error_message(), "did you mean") != NULL);

  char config[300];
  snprintf(config, sizeof(config), "coordinator: {address: \"%s\"}", argv[1]);
  EXPECT(lodestone_connect(config, &client) == LODESTONE_OK);
  const size_t shards = lodestone_shards(client);
  EXPECT(shards > 0 && shards <= 64);

  lodestone_table* weights = NULL;
  lodestone_table* items = NULL;
  EXPECT(lodestone_table_open(client, "{name: weights, dense: {dims: [3]}, optimizer: {learning_rate: 0.5}}",
                              &weights) == LODESTONE_OK);
  EXPECT(lodestone_table_open(client, "{name: items, embedding: {dim: 2}, optimizer: {learning_rate: 1}}", &items) ==
         LODESTONE_OK);
  EXPECT(lodestone_table_elements(weights) == 3 && lodestone_table_dim(weights) == 0);
  EXPECT(lodestone_table_dim(items) == 2 && lodestone_table_elements(items) == 0);
  EXPECT(strstr(lodestone_table_spec(items), "\"items\"") != NULL);
  lodestone_table* found = NULL;
  EXPECT(lodestone_table_find(client, "weights", &found) == LODESTONE_OK);
  EXPECT(lodestone_table_find(client, "nothing", &found) == LODESTONE_NOT_FOUND);

  /* Key 7 comes twice: its gradients are added up. */
  const float gradient[3] = {2, 4, 6};
  const uint64_t keys[3] = {7, 9, 7};
  const float rows[6] = {1, 2, 3, 4, 10, 20};
  const lodestone_gradients gradients[2] = {{weights, NULL, 0, gradient, 0}, {items, keys, 3, rows, 0}};
  lodestone_call* push = NULL;
  EXPECT(lodestone_push(client, 1, gradients, 2, NULL, &push) == LODESTONE_OK);
  EXPECT(WaitFor(push) == LODESTONE_OK);
  EXPECT(lodestone_call_status(push) == LODESTONE_OK);
  lodestone_call_release(push);

  float values[3], got[6];
  uint64_t versions[64];
  const lodestone_destination destinations[2] = {{weights, NULL, 0, values, 0}, {items, keys, 3, got, 0}};
  lodestone_call* pull = NULL;
  int dones = 0;
  EXPECT(lodestone_pull(client, destinations, 2, &pull) == LODESTONE_OK);
  EXPECT(lodestone_call_on_done(pull, CountDone, &dones) == LODESTONE_OK);
  EXPECT(lodestone_call_on_done(pull, CountDone, &dones) == LODESTONE_FAILED_PRECONDITION);
  EXPECT(WaitFor(pull) == LODESTONE_OK);
  EXPECT(values[0] == -1 && values[1] == -2 && values[2] == -3);
  const float expected[6] = {-11, -22, -3, -4, -11, -22};
  EXPECT(memcmp(got, expected, sizeof(got)) == 0);
  lodestone_call_versions(pull, versions, shards);
  uint64_t read = 0;
  for (size_t i = 0; i < shards; ++i) read += versions[i];
  EXPECT(read > 0);
  lodestone_call_versions(pull, NULL, shards);
  lodestone_call_release(pull);
  EXPECT(__atomic_load_n(&dones, __ATOMIC_RELAXED) == 1);

  /* What is read includes what is pushed with it. */
  const lodestone_read_versions seen = {versions, versions};
  lodestone_call* both = NULL;
  EXPECT(lodestone_push_pull(client, 2, gradients, 2, &seen, destinations, 2, &both) == LODESTONE_OK);
  EXPECT(WaitFor(both) == LODESTONE_OK);
  EXPECT(values[0] == -2 && got[0] == -22 && got[3] == -8 && got[4] == -22);
  lodestone_call_release(both);

  /* Regression: arrays that were NULL, and had elements, were read. */
  EXPECT(lodestone_push(client, 3, NULL, 1, NULL, &push) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(strstr(lodestone_error_message(), "an array of 1 is NULL") != NULL);
  EXPECT(lodestone_pull(client, NULL, 1, &pull) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(lodestone_push_pull(client, 3, NULL, 1, NULL, destinations, 2, &both) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(lodestone_push_pull(client, 3, gradients, 2, NULL, NULL, 1, &both) == LODESTONE_INVALID_ARGUMENT);

  /* Regression: memory was taken for any number of keys, before they were refused. */
  const size_t keys_max = (size_t)1 << 26;
  lodestone_table* users = NULL;
  EXPECT(lodestone_table_open(client, "{name: users, embedding: {dim: 2}, optimizer: {learning_rate: 1}}", &users) ==
         LODESTONE_OK);
  const lodestone_gradients many = {items, keys, keys_max + 1, rows, 0};
  EXPECT(lodestone_push(client, 3, &many, 1, NULL, &push) == LODESTONE_INVALID_ARGUMENT);
  const lodestone_destination too_many[2] = {{users, keys, 3, got, 0}, {items, keys, keys_max - 2, got, 0}};
  EXPECT(lodestone_pull(client, too_many, 2, &pull) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(strstr(lodestone_error_message(), "at most 67108864") != NULL);
  const lodestone_destination endless = {items, keys, keys_max + 1, got, LODESTONE_DISTINCT_KEYS};
  EXPECT(lodestone_pull(client, &endless, 1, &pull) == LODESTONE_INVALID_ARGUMENT);

  lodestone_subscription* subscription = NULL;
  EXPECT(lodestone_subscribe(client, NULL, 1, &subscription) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(lodestone_subscribe(client, &items, 1, &subscription) == LODESTONE_INVALID_ARGUMENT);
  lodestone_table* const same[2] = {weights, found};
  EXPECT(lodestone_subscribe(client, same, 2, &subscription) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(strstr(lodestone_error_message(), "`weights` is given twice") != NULL);
  EXPECT(lodestone_subscribe(client, &weights, 1, &subscription) == LODESTONE_OK);
  float followed[3] = {0, 0, 0};
  float* const into[1] = {followed};
  float* const nowhere[1] = {NULL};
  uint64_t stamp = 0, copied = 0;
  EXPECT(lodestone_subscription_wait(subscription, -1, &stamp) == LODESTONE_OK && stamp > 0);
  EXPECT(lodestone_subscription_copy(subscription, nowhere, 0, &copied, NULL, 0) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(lodestone_subscription_copy(subscription, into, 0, &copied, NULL, 0) == LODESTONE_OK);
  EXPECT(followed[0] == -2 && followed[2] == -6);
  EXPECT(lodestone_push(client, 3, gradients, 1, NULL, &push) == LODESTONE_OK);
  EXPECT(lodestone_flush(client) == LODESTONE_OK);
  lodestone_call_release(push);
  while (followed[0] != -3) {
    EXPECT(lodestone_subscription_wait(subscription, -1, &stamp) == LODESTONE_OK);
    EXPECT(lodestone_subscription_copy(subscription, into, copied, &copied, versions, shards) == LODESTONE_OK);
  }
  EXPECT(lodestone_unsubscribe(client, subscription) == LODESTONE_OK);
  EXPECT(lodestone_unsubscribe(client, subscription) == LODESTONE_OK);
  EXPECT(lodestone_subscription_copy(subscription, into, 0, &copied, NULL, 0) == LODESTONE_OK && followed[0] == -3);
  lodestone_subscription_release(subscription);

  /* Rows by broadcast: one that was pushed and one that never was. */
  const uint64_t followed_keys[2] = {keys[0], 77};
  float sent[4] = {0, 0, 0, 0};
  uint8_t present[2] = {9, 9};
  EXPECT(lodestone_subscribe_rows(client, weights, followed_keys, 2, &subscription) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(lodestone_subscribe_rows(client, items, followed_keys, 0, &subscription) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(lodestone_subscribe_rows(client, items, keys, keys_max + 1, &subscription) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(strstr(lodestone_error_message(), "at most 67108864") != NULL);
  EXPECT(lodestone_subscribe_rows(client, items, followed_keys, 2, &subscription) == LODESTONE_OK);
  stamp = 0;
  EXPECT(lodestone_subscription_wait(subscription, -1, &stamp) == LODESTONE_OK && stamp > 0);
  EXPECT(lodestone_subscription_copy(subscription, into, 0, &copied, NULL, 0) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(lodestone_subscription_copy_rows(subscription, sent, present, 0, &copied, versions, shards) == LODESTONE_OK);
  EXPECT(present[0] == 1 && present[1] == 0 && sent[0] != 0 && sent[2] == 0);
  lodestone_subscription_release(subscription);

  const float not_numbers[3] = {NAN, 0, 0};
  const lodestone_gradients bad = {weights, NULL, 0, not_numbers, 0};
  EXPECT(lodestone_push(client, 4, &bad, 1, NULL, &push) != LODESTONE_OK || WaitFor(push) != LODESTONE_OK);
  const lodestone_gradients twice[2] = {{weights, NULL, 0, gradient, 0}, {weights, NULL, 0, gradient, 0}};
  EXPECT(lodestone_push(client, 4, twice, 2, NULL, &push) == LODESTONE_INVALID_ARGUMENT);
  EXPECT(lodestone_report(client, 3, 100, 0.5f) == LODESTONE_OK);
  EXPECT(lodestone_health(client) == LODESTONE_OK);

  char* status = NULL;
  EXPECT(lodestone_status(config, &status) == LODESTONE_OK);
  EXPECT(strstr(status, "weights") != NULL);
  lodestone_free(status);

  /* A forked child is refused, and does no harm. */
  const pid_t child = fork();
  if (child == 0) {
    const int refused = lodestone_flush(client) == LODESTONE_FAILED_PRECONDITION &&
                        lodestone_pull(client, destinations, 1, &pull) == LODESTONE_FAILED_PRECONDITION &&
                        strstr(lodestone_error_message(), "fork") != NULL;
    lodestone_disconnect(client);
    _exit(refused ? 0 : 1);
  }
  int ended = -1;
  EXPECT(waitpid(child, &ended, 0) == child && ended == 0);
  EXPECT(lodestone_pull(client, destinations, 1, &pull) == LODESTONE_OK && WaitFor(pull) == LODESTONE_OK);
  lodestone_call_release(pull);
  /* The push that was no number. */
  EXPECT(lodestone_flush(client) == LODESTONE_INVALID_ARGUMENT);
  lodestone_disconnect(client);
  puts("ok");
  return 0;
}
