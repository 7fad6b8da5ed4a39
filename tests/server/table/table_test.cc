#include "server/table/table.h"

#include <memory>
#include <set>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

// The specification with what a change to it may bring.
v1::TableSpec SpecOf(uint64_t revision, float learning_rate) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.mutable_embedding()->set_dim(4);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(learning_rate);
  spec.set_revision(revision);
  return spec;
}

// The last of a thousand changes once cost the writing of a thousand specifications, on each shard.
TEST(TableTest, KeepsTheSettingsOfEachRevisionOnceThoughTheyAlternate) {
  constexpr uint64_t kRevisions = 1000;
  const auto table = Table::Create(SpecOf(0, 1), /*cluster_seed=*/1, /*shards=*/8);
  ASSERT_TRUE(table.ok()) << table.status();
  const auto rate = [](uint64_t revision) { return static_cast<float>(1 + revision % 2); };
  std::set<const TableSettings*> kept = {&(*table)->made()};
  for (uint64_t revision = 1; revision <= kRevisions; ++revision) {
    const auto settings = (*table)->Keep(SpecOf(revision, rate(revision)));
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_TRUE(kept.insert(*settings).second) << revision;
  }
  for (uint64_t revision = 0; revision <= kRevisions; ++revision) {
    const TableSettings* const settings = *(*table)->Keep(SpecOf(revision, rate(revision)));
    EXPECT_TRUE(kept.contains(settings)) << revision;
    EXPECT_EQ(settings->spec.revision(), revision);
    EXPECT_EQ(settings->spec.optimizer().learning_rate(), rate(revision));
  }
  EXPECT_EQ(*(*table)->Keep(SpecOf(0, 1)), &(*table)->made());
  EXPECT_EQ((*table)->newest_revision(), kRevisions);
}

TEST(TableTest, KeepsOtherSettingsOfTheSameRevisionBesideThem) {
  const auto table = Table::Create(SpecOf(0, 1), /*cluster_seed=*/1, /*shards=*/8);
  ASSERT_TRUE(table.ok()) << table.status();
  const TableSettings* const one = *(*table)->Keep(SpecOf(1, 2));
  const TableSettings* const other = *(*table)->Keep(SpecOf(1, 3));
  EXPECT_NE(one, other);
  EXPECT_EQ(*(*table)->Keep(SpecOf(1, 2)), one);
  EXPECT_EQ(*(*table)->Keep(SpecOf(1, 3)), other);
}

}  // namespace
}  // namespace lodestone::server
