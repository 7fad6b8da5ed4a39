// What a heartbeat says.
#include "server/status_reporter.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class StatusReporterTest : public StoreTest {
 protected:
  v1::ServerProgress Progress(uint32_t message_max_bytes) const {
    StatusReporter::Sources sources;
    sources.store = store_.get();
    sources.identity = [] { return ProcessIdentity(); };
    sources.add_waits = [](v1::StatusResponse*) {};
    sources.message_max_bytes = message_max_bytes;
    return StatusReporter(sources).Progress();
  }
};

TEST_F(StatusReporterTest, AHeartbeatHasTheLoadsOfShardsWhereTheyTakeAQuarterOfAMessageAtMost) {
  Make();
  for (int second = 0; second < 7; ++second) {  // Until all shards are measured.
    time_.AdvanceMs(1000);
    store_->Tick();
  }
  const v1::ServerProgress whole = Progress(64 << 20);
  ASSERT_THAT(whole.shards(), SizeIs(kShards));
  v1::ServerProgress loads;
  *loads.mutable_shards() = whole.shards();
  const auto bytes = static_cast<uint32_t>(loads.ByteSizeLong());
  EXPECT_THAT(Progress(4 * bytes).shards(), SizeIs(kShards));
  EXPECT_THAT(Progress(4 * bytes - 1).shards(), IsEmpty());
}

}  // namespace
}  // namespace lodestone::server
