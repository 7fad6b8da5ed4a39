// A shard that replays what another one noted holds what that one holds, bit for bit.
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard.h"
#include "tests/server/shard/filled_shard.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kDim = 3;
constexpr Incarnation kWorker = 7;

template <typename T>
ByteView Bytes(const std::vector<T>& values) {
  return ByteView(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T));
}

v1::TableSpec RowsSpec() {
  v1::TableSpec spec;
  spec.set_name("rows");
  spec.mutable_embedding()->set_dim(kDim);
  spec.mutable_optimizer()->mutable_adagrad();
  spec.mutable_initializer()->mutable_normal();
  return spec;
}

// What was noted of an update.
struct Noted {
  Version version = 0;
  uint64_t now_ms = 0;
  std::vector<Key> keys;  // Empty: rows expired.
  std::vector<float> gradients;
  std::vector<EvictedKeys> evicted;
};

// A one-shard cluster with one embedding table.
struct OneShard {
  explicit OneShard(const v1::TableSpec& spec) : table(*Table::Create(spec, /*cluster_seed=*/3, /*shards=*/1)) {
    shard.AddTable(table.get(), /*now_ms=*/0);
  }

  PartView PartOf(const Noted& update) const {
    PartView part;
    part.table = table.get();
    part.keys = Bytes(update.keys);
    part.row_count = update.keys.size();
    part.gradients = Bytes(update.gradients);
    return part;
  }
  absl::Status Replay(const Noted& update) {
    if (update.keys.empty()) return shard.ReplayExpiry(update.version, update.evicted);
    Evictions evictions(update.evicted);
    const PartView part = PartOf(update);
    return shard.ReplayPush(update.version, kWorker, update.version, {&part, 1}, update.now_ms, &evictions);
  }

  // Values and state by key, as bytes.
  std::map<Key, std::string> Content() const {
    const Table* const wanted = table.get();
    const auto snapshot = shard.Collect({&wanted, 1}, nullptr);
    std::map<Key, std::string> rows;
    const PageLayout& layout = snapshot->rows[0].layout;
    for (const auto& page : snapshot->rows[0].content.pages) {
      for (uint32_t i = 0; i < layout.rows(); ++i) {
        if (layout.Changed(page.page)[i] == 0) continue;
        const auto* const row = reinterpret_cast<const char*>(layout.Row(page.page, i));
        rows[layout.Keys(page.page)[i]] = std::string(row, layout.row_floats * sizeof(float));
      }
    }
    return rows;
  }

  std::unique_ptr<Table> table;
  Shard shard{0};
};

// Random pushes, pulls and sweeps on `live`; what the updates were.
std::vector<Noted> Live(OneShard* live, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Noted> log;
  uint64_t now_ms = 1000;
  for (int i = 0; i < 400; ++i) {
    now_ms += random() % 50;
    std::vector<Key> keys;
    for (size_t k = 0; k < 1 + random() % 40; ++k) keys.push_back(random() % 200);
    if (random() % 3 == 0) {
      std::vector<float> values(keys.size() * kDim);
      live->shard.Read(*live->table, Bytes(keys), keys.size(), now_ms, values.data());  // Keeps these rows warm.
      continue;
    }
    Noted update{0, now_ms, keys, {}, {}};
    for (size_t g = 0; g < keys.size() * kDim; ++g) update.gradients.push_back(static_cast<float>(random() % 9) - 4);
    Evictions evictions;
    if (random() % 10 == 0) {
      if (!Sweep(&live->shard, now_ms, &evictions)) continue;
      update.keys.clear();
    } else {
      const PartView part = live->PartOf(update);
      const Sequence sequence = live->shard.version() + 1;
      EXPECT_TRUE(live->shard.Push(kWorker, sequence, {&part, 1}, now_ms, &evictions).ok());
    }
    update.version = live->shard.version();
    update.evicted = evictions.groups();
    log.push_back(std::move(update));
  }
  return log;
}

class ReplayTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  // Runs and replays; returns how many rows made room or expired.
  size_t RunAndReplay(const v1::TableSpec& spec) {
    OneShard live(spec), again(spec);
    size_t evicted = 0;
    for (const Noted& update : Live(&live, GetParam())) {
      for (const EvictedKeys& group : update.evicted) evicted += group.keys.size();
      const absl::Status status = again.Replay(update);
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ(again.shard.version(), live.shard.version());
    EXPECT_EQ(again.Content(), live.Content()) << "seed " << GetParam();
    return evicted;
  }
};

TEST_P(ReplayTest, RowsThatMadeRoomAfterPullsThatWereNotLoggedAreTheSame) {
  for (const v1::Eviction::Policy policy : {v1::Eviction::LEAST_RECENT, v1::Eviction::LEAST_FREQUENT}) {
    v1::TableSpec spec = RowsSpec();
    spec.mutable_embedding()->mutable_eviction()->set_rows_max(60);
    spec.mutable_embedding()->mutable_eviction()->set_policy(policy);
    EXPECT_GT(RunAndReplay(spec), 100u);
  }
}

TEST_P(ReplayTest, RowsThatOutlivedTheirTimeAreTheSame) {
  v1::TableSpec spec = RowsSpec();
  spec.mutable_embedding()->mutable_eviction()->set_ttl_ms(300);
  spec.mutable_embedding()->mutable_eviction()->set_rows_max(120);
  EXPECT_GT(RunAndReplay(spec), 20u);
}

TEST_P(ReplayTest, AdmissionsAreTheSame) {
  v1::TableSpec spec = RowsSpec();
  spec.mutable_embedding()->mutable_admission()->set_count_min(3);
  spec.mutable_embedding()->mutable_admission()->set_probability(0.5f);
  RunAndReplay(spec);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReplayTest, ::testing::Values(1, 2, 3));

TEST(ReplayErrorsTest, AnUpdateThatIsMissingOrThereTwiceIsDataLoss) {
  OneShard shard(RowsSpec());
  const Noted first{1, 10, {5}, {1, 1, 1}, {}};
  ASSERT_TRUE(shard.Replay(first).ok());
  EXPECT_EQ(shard.Replay(first).code(), absl::StatusCode::kDataLoss);
  Noted third = first;
  third.version = 3;
  const absl::Status status = shard.Replay(third);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("shard 0 is at version 1"));
}

TEST(ReplayErrorsTest, EvictionsThatDoNotFitAreDataLoss) {
  v1::TableSpec spec = RowsSpec();
  spec.mutable_embedding()->mutable_eviction()->set_rows_max(1);
  const std::vector<float> ones(kDim, 1);
  for (const std::vector<EvictedKeys>& wrong :
       std::vector<std::vector<EvictedKeys>>{{},
                                             {{TableIdOf("other"), {5}}},
                                             {{TableIdOf("rows"), {6}}},
                                             {{TableIdOf("rows"), {5}}, {TableIdOf("rows"), {9}}}}) {
    OneShard shard(spec);
    ASSERT_TRUE(shard.Replay({1, 10, {5}, ones, {}}).ok());
    EXPECT_EQ(shard.Replay({2, 10, {9}, ones, wrong}).code(), absl::StatusCode::kDataLoss);
  }
  OneShard shard(spec);
  EXPECT_EQ(shard.Replay({1, 10, {}, {}, {{TableIdOf("rows"), {5}}}}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(shard.Replay({1, 10, {}, {}, {{TableIdOf("other"), {5}}}}).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace lodestone::server
