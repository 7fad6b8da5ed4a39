#include "server/store/table_catalog.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "proto/log.pb.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CatalogTest : public StoreTest {
 protected:
  // What a log says of a table.
  absl::Status Replay(const v1::TableSpec& spec, bool known = false) {
    v1::LogRecord record;
    *record.mutable_table() = spec;
    record.set_table_known(known);
    return store_->replayer().Replay(record, {}).status();
  }
};

// Regression: a ps took any number that the YAML reader refuses.
TEST_F(CatalogTest, ANumberOutOfItsRangeInATableSpecificationIsRefusedByName) {
  Make();
  using Change = std::function<void(v1::TableSpec*)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"guard.norm_max_factor", [](auto* spec) { spec->mutable_guard()->set_norm_max_factor(kNan); }},
      {"guard.norm_max_factor", [](auto* spec) { spec->mutable_guard()->set_norm_max_factor(kInfinity); }},
      {"guard.norm_max_factor", [](auto* spec) { spec->mutable_guard()->set_norm_max_factor(-1); }},
      {"embedding.admission.count_min",
       [](auto* spec) { spec->mutable_embedding()->mutable_admission()->set_count_min(0); }},
      {"embedding.admission.count_min",
       [](auto* spec) { spec->mutable_embedding()->mutable_admission()->set_count_min(65536); }},
      {"embedding.admission.probability",
       [](auto* spec) { spec->mutable_embedding()->mutable_admission()->set_probability(kNan); }},
      {"broadcast.every_ms", [](auto* spec) { spec->mutable_broadcast()->set_every_ms(3600001); }},
      {"optimizer.learning_rate", [](auto* spec) { spec->mutable_optimizer()->set_learning_rate(kNan); }},
      {"optimizer.schedule.cosine.steps",
       [](auto* spec) { spec->mutable_optimizer()->mutable_schedule()->mutable_cosine()->set_steps(0); }},
      {"initializer.uniform.low", [](auto* spec) { spec->mutable_initializer()->mutable_uniform()->set_low(2); }},
      {"initializer.normal.mean", [](auto* spec) { spec->mutable_initializer()->mutable_normal()->set_mean(kNan); }},
  };
  for (const auto& [field, change] : changes) {
    v1::TableSpec spec = AddingRows("r", 2);
    change(&spec);
    const absl::Status status = Ensure({spec}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field + ": ")) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("table `r`"));
  }
  EXPECT_TRUE(store_->tables().specs().empty());
}

// Regression: a ps that had taken NaN never started again, because its own log contradicted its checkpoint.
TEST_F(CatalogTest, ATableThatWasOnceAcceptedWithANaNIsAcceptedAgain) {
  Make();
  v1::TableSpec spec = AddingDense("d", 10, 0);
  spec.mutable_guard()->set_norm_max_factor(kNan);
  ASSERT_TRUE(Replay(spec).ok());
  EXPECT_TRUE(Replay(spec).ok()) << "the checkpoint's, then the log's";
  const auto tables = Ensure({spec});
  EXPECT_TRUE(tables.ok()) << tables.status();
}

TEST_F(CatalogTest, ATableThatWasOnceAcceptedOutOfRangeIsAcceptedAgain) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  spec.mutable_embedding()->mutable_admission()->set_count_min(0);
  spec.mutable_broadcast()->set_every_ms(3600001);
  spec.mutable_guard()->set_norm_max_factor(-1);
  ASSERT_TRUE(Replay(spec).ok());
  ASSERT_TRUE(Replay(spec).ok());
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok()) << tables.status();
  auto push = NewPush(1);
  push.AddRows(tables->tables(0).id(), 2, {{1, 1.0f}}, true);
  EXPECT_TRUE(Push(push).ok());
}

// Regression: it became SGD with a learning rate of 0.01.
TEST_F(CatalogTest, AnOptimizerThatThisPsDoesNotKnowIsRefusedByItsFieldNumber) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  spec.mutable_optimizer()->clear_kind();
  spec.mutable_optimizer()->GetReflection()->MutableUnknownFields(spec.mutable_optimizer())->AddLengthDelimited(15);
  const absl::Status status = Ensure({spec}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("table `r`: optimizer: field 15 is not known"));
}

// Regression: it became LEAST_RECENT.
TEST_F(CatalogTest, AnEvictionPolicyThatThisPsDoesNotKnowIsRefusedByItsValue) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  v1::TableSpec newer;
  newer.mutable_embedding()
      ->mutable_eviction()
      ->GetReflection()
      ->MutableUnknownFields(newer.mutable_embedding()->mutable_eviction())
      ->AddVarint(3, 7);
  ASSERT_TRUE(spec.MergeFromString(newer.SerializeAsString()));
  const absl::Status status = Ensure({spec}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("embedding.eviction.policy: value 7 is not known"));
}

TEST_F(CatalogTest, ALogOfANewerPsIsRefusedByNameAndOneThatWasWrittenUnknowinglyIsReadAsItWas) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  spec.GetReflection()->MutableUnknownFields(&spec)->AddVarint(99, 1);
  const absl::Status newer = Replay(spec, /*known=*/true);
  EXPECT_EQ(newer.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(newer.message()), HasSubstr("field 99"));
  EXPECT_TRUE(Replay(spec).ok());
  EXPECT_TRUE(Replay(spec).ok());
  EXPECT_TRUE(Ensure({AddingRows("r", 2)}).ok());
}

}  // namespace
}  // namespace lodestone::server
