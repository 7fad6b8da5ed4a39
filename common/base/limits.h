// Every fixed limit, in one place, with its unit. What a user would want to change is in proto/config.proto instead.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lodestone::limits {

// Server: bookkeeping of pushes.
inline constexpr uint64_t kSequenceWindow = 1024;           // Sequences in flight per worker span at most this many.
inline constexpr size_t kSessionsMax = 16384;               // Worker sessions per ps.
inline constexpr int64_t kSessionIdleMaxMs = 6 * 3600'000;  // A session without any call for this long is forgotten.
inline constexpr size_t kExecutorQueueMax = 4096;           // Messages waiting per executor before back-pressure.

// Worker: what is on its way.
inline constexpr uint64_t kPushBytesInFlightMax = 256 << 20;  // Of unacknowledged pushes of one client, to all ps.

// Server: shape of tables.
inline constexpr size_t kTablesMax = 4096;                        // Tables per ps.
inline constexpr size_t kTableNameBytesMax = 200;                 // Length of a table's name.
inline constexpr size_t kDenseDimsMax = 8;                        // Dimensions of a dense table.
inline constexpr uint64_t kDenseElementsMax = uint64_t{1} << 40;  // Elements of a dense table.
inline constexpr uint32_t kBlockElementsMax = 1u << 24;           // Elements per block, if configured.
inline constexpr uint32_t kEmbeddingDimMax = 16384;               // Floats per row.
inline constexpr size_t kPageBytesMax = 16 * 1024;                // Target size of an embedding page.
inline constexpr size_t kAdmissionCandidatesMax = 1 << 20;        // Keys counted towards admission, per shard.
inline constexpr size_t kEvictedKeysRemembered = 1 << 16;         // For deltas, per shard and table.

// Server: steps of tables (Consistency.Sync, Consistency.Tokens).
inline constexpr uint64_t kStepsAheadMax = 8;                    // From the one that is collected, that are begun.
inline constexpr uint64_t kPartialStepsMax = 16;                 // Newest steps whose batches a shard remembers.
inline constexpr uint64_t kContributionSamplesMax = 1ull << 29;  // Of one batch.
inline constexpr uint64_t kContributionBytesMax = 32ull << 30;   // Of those that wait, of one table on one ps.
inline constexpr int64_t kStepWaitMaxMs = 60'000;                // Longest wait of a pull for a step.

// Disk.
inline constexpr uint64_t kLogQueueBytesMax = 64 << 20;                  // Waiting for a log before back-pressure.
inline constexpr int64_t kLogRetryMs = 1000;                             // Until a log that failed is tried again.
inline constexpr int64_t kLogCommitSlowMs = 5;                           // A commit that takes longer is slow.
inline constexpr int64_t kLogCommitCalmMs = 1000;                        // After the last slow one they are fast again.
inline constexpr uint64_t kRecordMessageBytesMax = 1 << 30;              // Message of a record in a file.
inline constexpr uint64_t kRecordPayloadBytesMax = uint64_t{1} << 40;    // Payload of a record in a file.
inline constexpr size_t kCheckpointNameBytesMax = 100;                   // Length of a checkpoint's name.
inline constexpr uint64_t kCheckpointSpareBytesMax = uint64_t{1} << 30;  // Left free on the log's volume,
inline constexpr uint64_t kCheckpointSpareParts = 16;                    // or this part of it, if that is less.
inline constexpr uint64_t kCheckpointLogBytes = uint64_t{4} << 30;       // checkpoint.every_log_bytes, unset: at least,
inline constexpr uint64_t kCheckpointLogParts = 10;                      // and this part of its volume at most.
inline constexpr uint32_t kCheckpointsArrivedMax = 64;                   // Then one of all takes their place.
inline constexpr size_t kCheckpointFilesOpenMax = 64;                    // Written, and not on the disk yet.

// Followers.
inline constexpr uint64_t kFollowQueueBytesMax =
    256 << 20;  // Updates that followers which count have not confirmed, before back-pressure.
inline constexpr uint64_t kFollowBytesAhead = 8 << 20;     // Of a state, sent before the follower takes them.
inline constexpr uint64_t kFollowBytesTarget = 1 << 20;    // Small updates are sent together up to this.
inline constexpr uint64_t kCopyBytesPerSecond = 64 << 20;  // States and logs for followers, while pushes come.
inline constexpr int64_t kCatchUpHoldMs = 15 * 60'000;     // Segments of a log stay for a follower so long at most,
inline constexpr uint64_t kCatchUpHoldBytes = uint64_t{8} << 30;  // and while the log grows by no more than this.
inline constexpr uint64_t kCatchUpLookBytes = 256 << 20;  // Of a log, looked through for a follower, whatever it holds.

// Wire.
inline constexpr size_t kMessagePartsMax = 1 << 19;         // Parts in one message, for each shard.
inline constexpr uint64_t kPullBytesMax = 256 << 20;        // Values in one pull's answer.
inline constexpr size_t kDeltaBytesTarget = 4 << 20;        // Deltas are cut at about this size.
inline constexpr size_t kPackBytesTarget = 512 << 10;       // Calls are packed into one message of Exchange up to this.
inline constexpr size_t kExchangeCallsMax = 1024;           // In one message; unanswered before a ps reads no further.
inline constexpr size_t kExchangeBytesMax = 256 << 20;      // Of unanswered calls and unwritten answers, the same.
inline constexpr size_t kSmallAnswerBytes = 1 << 20;        // The only one of a stream has room, whatever others hold.
inline constexpr size_t kSmallChangesBytes = 1 << 20;       // So much a subscriber may keep whatever others do.
inline constexpr int64_t kUnreadMs = 30'000;                // While others wait, what is sent may be unread so long
inline constexpr size_t kUnreadBytesPerSecond = 256 << 10;  // plus what it takes at this rate.
inline constexpr uint64_t kCallMemoryParts = 24;            // Of server.memory_max_bytes, one is for calls; where
inline constexpr uint64_t kCallMemoryMessages = 4;          // tables leave room, up to this many messages.
inline constexpr uint64_t kBroadcastMemoryParts = 32;       // Of it, one is for broadcasts; more where there is room.
inline constexpr uint32_t kAwaitTimeoutMaxMs = 60'000;      // Longest single hold of AwaitClock.

// Coordinator, with etcd.
inline constexpr size_t kEtcdStateBytesMax = 1'500'000;  // Of its state: etcd takes 1.5 MiB a request by default.

// Observing.
inline constexpr uint32_t kWorkersMax = 4096;         // Places for workers, also beyond cluster.workers.
inline constexpr int64_t kWaitTellMs = 50;            // A shorter wait of a push in a ps is not told.
inline constexpr size_t kWaitsMax = 16;               // Waits that a heartbeat reports.
inline constexpr int kWaitShardsMax = 64;             // Shards that a wait names,
inline constexpr int kWaitBatchesMax = 16;            // and batches of a step.
inline constexpr size_t kWaitChainsMax = 64;          // Chains of waits in a status.
inline constexpr size_t kShardLoadsMax = 8192;        // Shards of a ps that a heartbeat reports one by one.
inline constexpr size_t kHotShardsMax = 8;            // Named in a status.
inline constexpr size_t kHotKeysMax = 8;              // That a heartbeat reports.
inline constexpr size_t kEventsMax = 1024;            // Kept, the newest.
inline constexpr size_t kHeartbeatEventsMax = 64;     // In one heartbeat; more wait for the next.
inline constexpr size_t kHistoryPointsMax = 600;      // When there are more, every two become one.
inline constexpr int64_t kHistoryPeriodMs = 1000;     // From one point to the next, at first.
inline constexpr size_t kValidationsMax = 256;        // Results of validations that a coordinator keeps, the newest.
inline constexpr size_t kHttpThreads = 4;             // Requests answered at a time, per process.
inline constexpr size_t kHttpRequestBytesMax = 8192;  // Of a request, with its headers.
inline constexpr int64_t kHttpTimeoutMs = 5000;       // For a request to arrive, and for an answer to be taken.

// Serving of predictions.
inline constexpr size_t kPredictSamplesMax = 65536;     // Of a request.
inline constexpr size_t kPredictBytesMax = 32 << 20;    // Of a request.
inline constexpr size_t kPredictionsMax = 1 << 24;      // Probabilities of an answer.
inline constexpr size_t kPredictRequestsMax = 64;       // At a time: under way or waiting.
inline constexpr int64_t kPredictPullTimeoutMs = 5000;  // For rows of a cluster, while servers are away.

// Security.
inline constexpr size_t kIdentitiesMax = 10000;         // In the file.
inline constexpr size_t kSecretFileBytesMax = 1 << 20;  // Of a file of tokens, keys or certificates.

// Worker.
inline constexpr uint64_t kRowsPerBatchMax = 1 << 26;                // Distinct keys of one batch.
inline constexpr uint64_t kLineBytesMax = 16 << 20;                  // Length of a line of a data file.
inline constexpr uint32_t kClassesMax = 65536;                       // Classes of a softmax.
inline constexpr size_t kLabelsMax = 64;                             // Labels of a multitask model.
inline constexpr uint64_t kParquetFooterBytesMax = 256 << 20;        // Metadata of a Parquet file.
inline constexpr uint64_t kParquetPageBytesMax = uint64_t{1} << 30;  // A page of it, unpacked.
inline constexpr uint64_t kParquetPageHeaderBytesMax = 1 << 20;      // What comes before a page.
inline constexpr uint64_t kNpyHeaderBytesMax = 1 << 16;              // What an npy file says of its array.

// Both.
inline constexpr int64_t kRetryBackoffMinMs = 20;    // First pause between two attempts of a call.
inline constexpr int64_t kRetryBackoffMaxMs = 2000;  // Longest pause.
inline constexpr int64_t kShutdownGraceMs = 2000;    // How long calls under way may go on at shutdown.

}  // namespace lodestone::limits
