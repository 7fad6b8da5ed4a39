/* The C interface of a Lodestone cluster's client: liblodestone.so. Whatever can call C can train with a cluster.
 *
 * Every function that can fail returns a status code: LODESTONE_OK, or one of gRPC's codes; lodestone_error_message()
 * then says what is wrong and what to do, in the words of the server where it was the server that refused. Such a
 * function refuses NULL with LODESTONE_INVALID_ARGUMENT, for a handle, an array that has elements or where a result
 * goes, unless it says otherwise.
 *
 * Thread safety: all functions may be called from any thread, also on the same handle, but for the function that ends
 * the handle. No function of this library may be called from a callback, but for lodestone_call_status and
 * lodestone_call_versions.
 *
 * Processes: in a child that was forked after the first lodestone_connect every function returns
 * LODESTONE_FAILED_PRECONDITION, and those that end a handle do nothing: connections do not survive a fork. Start
 * processes that need a cluster with fork and exec ("spawn"), or connect in the child only.
 *
 * Memory: texts and arrays that are passed in are copied before a function returns unless it says otherwise. A text
 * that is returned belongs to the library, and lives as long as its handle unless the function says otherwise. A
 * program that pulls many megabytes at a time does well to let glibc's malloc keep what messages were received into:
 * mallopt(M_MMAP_THRESHOLD, 32 << 20), mallopt(M_TRIM_THRESHOLD, 128 << 20), mallopt(M_TOP_PAD, 16 << 20). */
#ifndef LODESTONE_WORKER_CAPI_LODESTONE_H_
#define LODESTONE_WORKER_CAPI_LODESTONE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change after which a program must be compiled again. */
#define LODESTONE_ABI 1

/* Status codes, which are gRPC's. */
enum {
  LODESTONE_OK = 0,
  LODESTONE_CANCELLED = 1,
  LODESTONE_UNKNOWN = 2,
  LODESTONE_INVALID_ARGUMENT = 3,
  LODESTONE_DEADLINE_EXCEEDED = 4,
  LODESTONE_NOT_FOUND = 5,
  LODESTONE_ALREADY_EXISTS = 6,
  LODESTONE_PERMISSION_DENIED = 7,
  LODESTONE_RESOURCE_EXHAUSTED = 8,
  LODESTONE_FAILED_PRECONDITION = 9,
  LODESTONE_ABORTED = 10,
  LODESTONE_OUT_OF_RANGE = 11,
  LODESTONE_UNIMPLEMENTED = 12,
  LODESTONE_INTERNAL = 13,
  LODESTONE_UNAVAILABLE = 14,
  LODESTONE_DATA_LOSS = 15,
  LODESTONE_UNAUTHENTICATED = 16
};

/* A member of a cluster, with its connections. */
typedef struct lodestone_client lodestone_client;
/* A table that exists on all servers. Belongs to its client. */
typedef struct lodestone_table lodestone_table;
/* A push or a pull under way, or its outcome. */
typedef struct lodestone_call lodestone_call;
/* The broadcasts of some dense tables. */
typedef struct lodestone_subscription lodestone_subscription;

/* LODESTONE_ABI of the library that is loaded. */
int lodestone_abi(void);
/* Its version, as "1.2.0". */
const char* lodestone_version(void);
/* What the last function of this thread that did not return LODESTONE_OK had to say; "" if none has. Valid until the
 * next call of this thread. */
const char* lodestone_error_message(void);

/* Receives the library's log: `level` is 0 (trace) to 4 (error), `component` the part that writes. Called on any
 * thread, several at a time. */
typedef void (*lodestone_log_function)(int level, const char* component, const char* message, void* user);
/* From now on events of `level` and above go to `function`, and not to standard error; NULL: to standard error. Returns
 * when no call of the former function runs. */
void lodestone_set_log(int level, lodestone_log_function function, void* user);

/* Joins a cluster. `config` is YAML or JSON in the form of Lodestone's configuration files, of which `cluster.name`,
 * `coordinator`, `security` and `worker` count; at least coordinator.address must be set. A part that is not set is as
 * a worker's; cluster.shards, if it is not set, is what the cluster has. Waits up to coordinator.join_timeout_ms for
 * the servers. The client takes one of the cluster's places for workers (cluster.workers of the ps). INVALID_ARGUMENT
 * names the field. DEADLINE_EXCEEDED: within that time nothing was reached, or no place became free; the message says
 * which. */
int lodestone_connect(const char* config, lodestone_client** client);
/* The same for a client that only reads: it takes no place, has no lease, and the coordinator does not know it. What
 * pushes, reports or waits for other workers is FAILED_PRECONDITION. */
int lodestone_observe(const char* config, lodestone_client** client);
/* Leaves the cluster: cancels what is in flight, waits for callbacks, frees the client and its tables. Calls and
 * subscriptions stay valid until they are released. NULL is allowed. */
void lodestone_disconnect(lodestone_client* client);

/* The place of this client among the workers, from 0; UINT32_MAX of one that observes. */
uint32_t lodestone_index(const lodestone_client* client);
/* The number of shards, which is that of the versions below. */
size_t lodestone_shards(const lodestone_client* client);
/* LODESTONE_OK as long as the client can be used; else why it cannot: it was not heard of for longer than its lease,
 * say. */
int lodestone_health(lodestone_client* client);
/* The state of the cluster of which a ps is at coordinator.address of `config`, as JSON (Admin.Status of
 * proto/admin.proto). No client is needed. `json` is to be freed by lodestone_free. */
int lodestone_status(const char* config, char** json);
void lodestone_free(char* text);

/* Makes a table, or finds it, on all servers. `spec` is YAML or JSON in the form of a TableSpec of proto/table.proto:
 * {"name": "items", "embedding": {"dim": 16}, "optimizer": {"adagrad": {}, "learning_rate": 0.1}}. A table that exists
 * must have the same shape and optimizer; its other settings become those of `spec`, but for what an operator holds and
 * for a caller that may only read. */
int lodestone_table_open(lodestone_client* client, const char* spec, lodestone_table** table);
/* Finds a table that exists, with its settings as they are. NOT_FOUND. */
int lodestone_table_find(lodestone_client* client, const char* name, lodestone_table** table);
/* Its specification as JSON, as the servers had it when it was opened or found. */
const char* lodestone_table_spec(const lodestone_table* table);
/* Elements of a dense table; 0 for an embedding table. */
uint64_t lodestone_table_elements(const lodestone_table* table);
/* Floats in a row of an embedding table; 0 for a dense table. */
uint32_t lodestone_table_dim(const lodestone_table* table);

/* Keys of `keys` are distinct: no key comes twice. Otherwise gradients of one key are added up before they are sent,
 * and a row that is pulled twice is sent once. */
#define LODESTONE_DISTINCT_KEYS 1u
/* Of a push: the values of dense tables are not copied, but sent from where they lie: they must stay, unchanged, until
 * the call is done. */
#define LODESTONE_BORROWED 2u

/* Gradients of one table: a dense table's are [elements] and `keys` is NULL; an embedding table's are
 * [keys_count, dim]. The tables of one push, or of one pull, have 2^26 keys together at most, repeated
 * ones counted. */
typedef struct lodestone_gradients {
  lodestone_table* table;
  const uint64_t* keys;
  size_t keys_count;
  const float* values;
  uint32_t flags;
} lodestone_gradients;

/* Where the values of one table are wanted: shaped as gradients are. `values` must stay until the call is done, and are
 * whole only if it ended with LODESTONE_OK. */
typedef struct lodestone_destination {
  lodestone_table* table;
  const uint64_t* keys;
  size_t keys_count;
  float* values;
  uint32_t flags;
} lodestone_destination;

/* The versions of the shards at which values were read, lodestone_shards() of the client that pushes; NULL: not known.
 * With them the delay of a push is measured. Tables whose consistency is async with rate: by_delay divide their
 * learning rate by it. */
typedef struct lodestone_read_versions {
  const uint64_t* dense;
  const uint64_t* rows;
} lodestone_read_versions;

/* Sends gradients, as one update, as step `clock` of this client. Waits while worker.pushes_in_flight_max pushes are
 * not acknowledged. `versions` may be NULL. An acknowledged push is applied exactly once. OUT_OF_RANGE of the call: a
 * table's guard refused it. */
int lodestone_push(lodestone_client* client, uint64_t clock, const lodestone_gradients* gradients, size_t count,
                   const lodestone_read_versions* versions, lodestone_call** call);
/* Reads values. */
int lodestone_pull(lodestone_client* client, const lodestone_destination* destinations, size_t count,
                   lodestone_call** call);
/* A push, then a pull: what is read includes the push. In one exchange with each server where possible. */
int lodestone_push_pull(lodestone_client* client, uint64_t clock, const lodestone_gradients* gradients,
                        size_t gradients_count, const lodestone_read_versions* versions,
                        const lodestone_destination* destinations, size_t destinations_count, lodestone_call** call);
/* Waits until all pushes of this client are acknowledged; the first error that one ended with, but for OUT_OF_RANGE:
 * that a table's guard refused a push only its call says. */
int lodestone_flush(lodestone_client* client);
/* What heartbeats report of this client: steps taken, samples seen, and the latest loss. */
int lodestone_report(lodestone_client* client, uint64_t clock, uint64_t samples, float loss);
/* Waits until all other live workers have reported at least `clock`. */
int lodestone_await_clock(lodestone_client* client, uint64_t clock);

/* Waits until the call is done, or `timeout_ms` have passed (-1, or a century: for ever; 0: not at all): then `*done`
 * is 0 and LODESTONE_OK is returned. Otherwise the status that the call ended with. */
int lodestone_call_wait(lodestone_call* call, int64_t timeout_ms, int* done);
/* Calls `function` once when the call is done, on one of the client's threads or, if it is done already, at once. It
 * must be quick. At most one function per call. */
typedef void (*lodestone_done_function)(lodestone_call* call, void* user);
int lodestone_call_on_done(lodestone_call* call, lodestone_done_function function, void* user);
/* The status of a call that is done. */
int lodestone_call_status(lodestone_call* call);
/* Of a call that is done and has read values: the version of each shard at which it did, 0 where nothing was read.
 * `versions` has room for lodestone_shards(); NULL: does nothing. All 0 for a push. */
void lodestone_call_versions(lodestone_call* call, uint64_t* versions, size_t shards);
/* Frees the call. If it is not done it goes on: what it writes to must stay until the client is disconnected. NULL is
 * allowed. */
void lodestone_call_release(lodestone_call* call);

/* Subscribes to the broadcasts of dense tables: the library keeps a copy of their values that is never older than the
 * last broadcast. Tables are broadcast as `broadcast` of their specification says. INVALID_ARGUMENT: one is given
 * twice. */
int lodestone_subscribe(lodestone_client* client, lodestone_table* const* tables, size_t count,
                        lodestone_subscription** subscription);
/* Subscribes to the broadcasts of an embedding table: the library keeps a copy of the rows with these keys, 2^26 at
 * most, which may repeat. Each ps sends all rows of the table once, whatever the keys, and then those that change: few
 * rows of a large table are better pulled. */
int lodestone_subscribe_rows(lodestone_client* client, lodestone_table* table, const uint64_t* keys, size_t count,
                             lodestone_subscription** subscription);
/* Waits until there is more than at `stamp` (0: anything at all; all values are there then), or `timeout_ms` have
 * passed (-1, or a century: for ever), and sets `*stamp` to what there is, unchanged if the time has passed. */
int lodestone_subscription_wait(lodestone_subscription* subscription, int64_t timeout_ms, uint64_t* stamp);
/* Copies the newest values of tables[i] to values[i], [elements], for all tables of the subscription, in their order;
 * blocks that have not changed since `since`, a stamp of an earlier copy into the same arrays, are left out (0: none
 * is). `*stamp`: of this copy. `versions` (may be NULL): as lodestone_call_versions. Each block is of one version.
 * UNAVAILABLE: not all values have come yet. */
int lodestone_subscription_copy(lodestone_subscription* subscription, float* const* values, uint64_t since,
                                uint64_t* stamp, uint64_t* versions, size_t shards);
/* The same of a subscription to rows: copies those that have changed since `since` to `values`, [count, dim], in the
 * order of the keys. present[i] is 1 where the table has the i-th row, and 0 where it does not (never pushed, or
 * evicted): a pull says what it would begin with. */
int lodestone_subscription_copy_rows(lodestone_subscription* subscription, float* values, uint8_t* present,
                                     uint64_t since, uint64_t* stamp, uint64_t* versions, size_t shards);
/* Ends the subscription at the servers: nothing comes any more, and what has come can be copied until it is released.
 * Waits for callbacks: not for functions of lodestone_call_on_done. May be repeated. */
int lodestone_unsubscribe(lodestone_client* client, lodestone_subscription* subscription);
/* Frees the subscription. One that was not ended by lodestone_unsubscribe goes on taking memory and broadcasts until
 * the client disconnects. NULL is allowed. */
void lodestone_subscription_release(lodestone_subscription* subscription);

#ifdef __cplusplus
}
#endif

#endif /* LODESTONE_WORKER_CAPI_LODESTONE_H_ */
