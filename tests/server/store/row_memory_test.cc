// Memory of ten million embedding rows, as the operating system counts it. Takes about 1.6 GB; tagged "large_memory" so
// that sanitizer runs leave it out.
#include <unistd.h>

#include <fstream>
#include <vector>

#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(StoreTest, TenMillionRowsTakeAtMostAQuarterMoreThanValuesStateAndSixteenBytesEach) {
  Make();
  constexpr Key kRows = 10'000'000;
  constexpr Key kRowsPerPush = 20'000;
  constexpr uint32_t kDim = 16;
  v1::TableSpec spec = AddingRows("r", kDim);
  spec.mutable_optimizer()->mutable_adagrad();
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok());
  const uint64_t before = ResidentBytes();
  Sequence sequence = 0;
  std::vector<std::pair<Key, float>> rows(kRowsPerPush);
  for (Key first = 0; first < kRows; first += kRowsPerPush) {
    for (Key i = 0; i < kRowsPerPush; ++i) rows[i] = {first + i, 1.0f};
    auto push = NewPush(++sequence);
    push.AddRows(tables->tables(0).id(), kDim, rows, true);
    ASSERT_TRUE(Push(push).ok());
  }
  const double allowed = 1.25 * (kDim * sizeof(float) * 2 + 16);
  const double resident = static_cast<double>(ResidentBytes() - before) / kRows;
  v1::StatusResponse status;
  store_->FillStatus(&status);
  ASSERT_EQ(status.tables(0).rows(), kRows);
  const double accounted = static_cast<double>(status.tables(0).bytes()) / kRows;
  std::printf("bytes per row: %.1f resident, %.1f accounted, %.1f allowed\n", resident, accounted, allowed);
  EXPECT_LE(resident, allowed);
  EXPECT_LE(accounted, allowed);
  EXPECT_NEAR(accounted, resident, 0.1 * resident);
}

}  // namespace
}  // namespace lodestone::server
