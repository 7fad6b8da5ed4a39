#include "server/durability/saved_states.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/byte_view.h"
#include "common/base/status.h"

namespace lodestone::server {

absl::Status SavedStates::Check(const v1::LogRecord& record, uint64_t lineage) const {
  if (Rank(lineage, record.term(), record.version()) <= newest_[record.shard()]) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the log holds version ", record.version(), " of shard ", record.shard(),
                   ", which no checkpoint has, and with this cluster.servers the shard is another server's: start with "
                   "as many servers as before and shut them down cleanly first"));
}

absl::Status SavedStates::CheckLogs(const LogReader::Options& options) const {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<LogSegments> logs, ListLogs(options.dir));
  for (const LogSegments& log : logs) {
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader, LogReader::Open(options, log));
    v1::LogRecord record;
    ByteView payload;
    while (true) {
      LODESTONE_ASSIGN_OR_RETURN(const bool there, reader->Next(&record, &payload));
      if (!there) break;
      if (record.version() == 0 || record.shard() >= newest_.size()) continue;
      LODESTONE_RETURN_IF_ERROR(Annotate(Check(record, reader->LineageOf(record)), reader->place()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lodestone::server
