#include "server/store/catalog.h"

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
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
      {"initializer.zero_columns", [](auto* spec) { spec->mutable_initializer()->set_zero_columns(3); }},
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

// Regression: only single messages were looked into, and the ps forgot the field at its next start.
TEST_F(CatalogTest, AFieldOfOneOfTheModelsColumnsThatThisPsDoesNotKnowIsRefused) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  spec.mutable_model()->mutable_data()->add_categorical()->set_name("a");
  auto* const newer = spec.mutable_model()->mutable_data()->add_categorical();
  newer->GetReflection()->MutableUnknownFields(newer)->AddVarint(99, 1);
  const absl::Status status = Ensure({spec}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.data.categorical[1]: field 99 is not known"));
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

// A table goes on with what a later worker wants of it.
TEST_F(CatalogTest, TheTotalsAreTheSumsOfAllTablesWhateverComesAndGoes) {
  constexpr uint32_t kDim = 2;
  Make();
  v1::TableSpec bounded = AddingRows("bounded", kDim);
  bounded.mutable_embedding()->mutable_eviction()->set_rows_max(200);
  const auto tables = Ensure({AddingDense("dense", 1000, 64), AddingRows("rows", kDim), bounded});
  ASSERT_TRUE(tables.ok());
  const auto sums = [this] {
    v1::StatusResponse status;
    store_->FillStatus(&status);
    std::pair<uint64_t, uint64_t> sums;
    for (const v1::TableStatus& table : status.tables()) {
      sums.first += table.rows();
      sums.second += table.bytes();
    }
    return sums;
  };
  const auto before = sums();
  EXPECT_EQ(store_->tables().totals(), before);
  for (Sequence sequence = 1; sequence <= 10; ++sequence) {
    std::vector<std::pair<Key, float>> rows(100);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = {sequence * rows.size() + i, 1.0f};
    auto push = NewPush(sequence);
    for (const int t : {1, 2}) push.AddRows(tables->tables(t).id(), kDim, rows, true);
    ASSERT_TRUE(Push(push).ok());
  }
  const auto after = sums();
  EXPECT_GT(after.first, before.first + 1000);
  EXPECT_LT(after.first, before.first + 2000) << "some were evicted";
  EXPECT_GT(after.second, before.second);
  EXPECT_EQ(store_->tables().totals(), after);
}

class ContinuedTableTest : public CatalogTest {
 protected:
  // The values that a push of 1 leads to, from where the table is.
  float ValueAfterPush(Sequence sequence, TableId table) {
    auto push = NewPush(sequence);
    push.AddRows(table, 2, {{1, 1.0f}}, true);
    EXPECT_TRUE(Push(push).ok());
    return PullRows(table, 2, {1})[0];
  }
};

// Regression: any other learning rate, broadcast or initializer was ALREADY_EXISTS, so that nothing could be trained
// on.
TEST_F(ContinuedTableTest, AnExistingTableTakesOtherSettingsAndKeepsItsValues) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  spec.mutable_initializer()->mutable_constant()->set_value(10);
  const auto made = Ensure({spec});
  ASSERT_TRUE(made.ok()) << made.status();
  const TableId table = made->tables(0).id();
  EXPECT_EQ(ValueAfterPush(1, table), 11);
  spec.mutable_optimizer()->set_learning_rate(-0.5f);
  spec.mutable_initializer()->mutable_constant()->set_value(20);
  spec.mutable_broadcast()->set_every_pushes(3);
  spec.mutable_guard()->set_norm_max_factor(7);
  const auto changed = Ensure({spec});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->tables(0).id(), table);
  EXPECT_EQ(ValueAfterPush(2, table), 11.5f);
  EXPECT_EQ(PullRows(table, 2, {77})[0], 10) << "rows that nothing has been pushed to are what they were";
  const std::optional<v1::TableSpec> now = store_->tables().SpecOf("r");
  ASSERT_TRUE(now.has_value());
  EXPECT_EQ(now->optimizer().learning_rate(), -0.5f);
  EXPECT_EQ(now->broadcast().every_pushes(), 3u);
  EXPECT_EQ(now->guard().norm_max_factor(), 7);
  EXPECT_EQ(now->initializer().constant().value(), 10);
  EXPECT_EQ(now->revision(), 1u);
  ASSERT_TRUE(Ensure({spec}).ok());
  EXPECT_EQ(store_->tables().SpecOf("r")->revision(), 1u) << "nothing has changed";
}

TEST_F(ContinuedTableTest, WhatAnOperatorSetsIsHeldAgainstWorkersUntilItIsReleased) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  const auto made = Ensure({spec});
  ASSERT_TRUE(made.ok()) << made.status();
  const TableId table = made->tables(0).id();
  EXPECT_EQ(ValueAfterPush(1, table), 1);
  v1::SetTableRequest request;
  request.set_table("r");
  request.add_fields("optimizer.learning_rate");
  request.mutable_settings()->mutable_optimizer()->set_learning_rate(-0.5f);
  const uint64_t revision = store_->tables().settings_revision();
  const auto set = store_->tables().Set(request);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_TRUE(set->changed());
  EXPECT_THAT(set->settings().held(), testing::ElementsAre("optimizer.learning_rate"));
  EXPECT_TRUE(set->settings().optimizer().has_sgd()) << "nothing else is touched";
  EXPECT_GT(store_->tables().settings_revision(), revision);
  EXPECT_EQ(ValueAfterPush(2, table), 1.5f);
  EXPECT_FALSE(store_->tables().Set(request)->changed()) << "it is safe to ask again";
  spec.mutable_optimizer()->set_learning_rate(-4);
  spec.mutable_broadcast()->set_every_pushes(3);
  ASSERT_TRUE(Ensure({spec}).ok());
  EXPECT_EQ(ValueAfterPush(3, table), 2) << "a worker has another rate";
  EXPECT_EQ(store_->tables().SpecOf("r")->broadcast().every_pushes(), 3u);
  request.Clear();
  request.set_table("r");
  request.add_released("optimizer.learning_rate");
  ASSERT_TRUE(store_->tables().Set(request).ok());
  EXPECT_EQ(ValueAfterPush(4, table), 2.5f) << "until a worker brings another one";
  ASSERT_TRUE(Ensure({spec}).ok());
  EXPECT_EQ(ValueAfterPush(5, table), 6.5f);
}

TEST_F(ContinuedTableTest, WhatCannotBeSetIsRefusedAndChangesNothing) {
  Make();
  ASSERT_TRUE(Ensure({AddingRows("r", 2), AddingDense("d", 10, 4)}).ok());
  const auto refused = [&](const std::string& name, const std::string& field, const v1::TableSpec& settings,
                           absl::StatusCode code, const std::string& why) {
    v1::SetTableRequest request;
    request.set_table(name);
    request.add_fields(field);
    *request.mutable_settings() = settings;
    const absl::Status status = store_->tables().Set(request).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    const std::optional<v1::TableSpec> now = store_->tables().SpecOf(name);
    EXPECT_EQ(now.has_value() ? now->revision() : 0, 0u);
  };
  v1::TableSpec settings;
  refused("none", "guard", settings, absl::StatusCode::kNotFound, "there is no table `none`");
  refused("r", "embedding.dim", settings, absl::StatusCode::kInvalidArgument, "set optimizer, broadcast,");
  refused("r", "initializer", settings, absl::StatusCode::kInvalidArgument, "`initializer` is nothing that can be set");
  refused("r", "optimizer.rate", settings, absl::StatusCode::kInvalidArgument, "there is no such field in optimizer");
  settings.mutable_optimizer()->set_learning_rate(std::nanf(""));
  refused("r", "optimizer.learning_rate", settings, absl::StatusCode::kInvalidArgument, "learning_rate");
  settings.mutable_optimizer()->mutable_adam();
  refused("r", "optimizer.adam", settings, absl::StatusCode::kInvalidArgument, "sgd, not adam");
  settings.mutable_embedding()->mutable_admission()->set_count_min(2);
  refused("d", "embedding.admission", settings, absl::StatusCode::kInvalidArgument, "it is dense [10]");
  settings.mutable_consistency()->mutable_sync()->set_batches(2);
  refused("r", "consistency", settings, absl::StatusCode::kFailedPrecondition, "they have to pause for that");
  v1::SetTableRequest both;
  both.set_table("r");
  both.add_fields("consistency");
  both.add_fields("guard");
  *both.mutable_settings() = settings;
  both.mutable_settings()->mutable_guard()->set_norm_max_factor(7);
  both.set_orders(1);
  EXPECT_THAT(store_->tables().Set(both).status().message(), HasSubstr("table `r` has a guard"));
  settings.mutable_consistency()->mutable_sync()->clear_batches();
  refused("r", "consistency", settings, absl::StatusCode::kInvalidArgument, "batches is 0");
  settings.mutable_consistency()->mutable_tokens();
  refused("r", "consistency", settings, absl::StatusCode::kInvalidArgument, "batch is 0");
  v1::SetTableRequest request;
  request.set_table("r");
  request.add_released("guard");
  const absl::Status status = store_->tables().Set(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not held; nothing is"));
}

// Regression: settings in which nothing but the member of a oneof differs, at its defaults, counted as the same.
TEST_F(ContinuedTableTest, ConsistencyMayBecomeBoundedByTheDefaultAndAsyncAgain) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  ASSERT_TRUE(Ensure({spec}).ok());
  v1::SetTableRequest request;
  request.set_table("r");
  request.add_fields("consistency");
  request.mutable_settings()->mutable_consistency()->mutable_bounded();
  EXPECT_TRUE(store_->tables().Set(request)->changed());
  EXPECT_TRUE(store_->tables().SpecOf("r")->consistency().has_bounded());
  request.mutable_settings()->mutable_consistency()->mutable_async();
  EXPECT_TRUE(store_->tables().Set(request)->changed());
  EXPECT_TRUE(store_->tables().SpecOf("r")->consistency().has_async());
  EXPECT_FALSE(store_->tables().Set(request)->changed());
  spec.mutable_consistency()->mutable_tokens()->set_batch(2);
  const absl::Status status = Ensure({spec}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("psctl set r consistency="));
  request.Clear();
  request.set_table("r");
  request.add_released("consistency");
  ASSERT_TRUE(store_->tables().Set(request).ok());
  EXPECT_TRUE(Ensure({spec}).ok());
}

TEST_F(ContinuedTableTest, AWorkerWithStepsOfOtherBatchesThanAnOperatorHoldsIsRefused) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  spec.mutable_consistency()->mutable_sync()->set_batches(2);
  ASSERT_TRUE(Ensure({spec}).ok());
  v1::SetTableRequest request;
  request.set_table("r");
  request.add_fields("consistency");
  *request.mutable_settings()->mutable_consistency() = spec.consistency();
  ASSERT_TRUE(store_->tables().Set(request).ok()) << "it is held as it is";
  EXPECT_TRUE(Ensure({spec}).ok());
  spec.mutable_consistency()->mutable_sync()->set_batches(4);
  EXPECT_EQ(Ensure({spec}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ContinuedTableTest, WhatIsHeldOfAMemberThatAnotherHasTakenThePlaceOfIsHeldNoMore) {
  Make();
  const v1::TableSpec spec = AddingRows("r", 2);
  ASSERT_TRUE(Ensure({spec}).ok());
  v1::SetTableRequest request;
  request.set_table("r");
  request.add_fields("consistency.bounded.staleness");
  request.mutable_settings()->mutable_consistency()->mutable_bounded()->set_staleness(2);
  ASSERT_TRUE(store_->tables().Set(request).ok());
  request.set_fields(0, "consistency.async.rate");
  request.mutable_settings()->mutable_consistency()->mutable_async()->set_rate(v1::Consistency::Async::BY_DELAY);
  ASSERT_TRUE(store_->tables().Set(request).ok());
  EXPECT_THAT(store_->tables().SpecOf("r")->held(), testing::ElementsAre("consistency.async.rate"));
  ASSERT_TRUE(Ensure({spec}).ok());
  EXPECT_EQ(store_->tables().SpecOf("r")->consistency().async().rate(), v1::Consistency::Async::BY_DELAY);
}

// What an operator sets on the other ps has a higher revision than all that workers bring to one which was not there.
TEST_F(ContinuedTableTest, WhatIsHeldComesWithItsRevisionAndIsAboveAllThatWorkersBring) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  ASSERT_TRUE(Ensure({spec}).ok());
  v1::SetTableRequest request;
  request.set_table("r");
  request.add_fields("optimizer.learning_rate");
  request.mutable_settings()->mutable_optimizer()->set_learning_rate(-0.5f);
  ASSERT_TRUE(store_->tables().Set(request).ok());
  const v1::TableSpec held = *store_->tables().SpecOf("r");
  Make();
  ASSERT_TRUE(Ensure({spec}).ok());
  for (const uint32_t pushes : {3, 4, 5}) {
    spec.mutable_broadcast()->set_every_pushes(pushes);
    ASSERT_TRUE(Ensure({spec}).ok());
  }
  ASSERT_TRUE(store_->tables().Restore(held).ok());
  EXPECT_EQ(store_->tables().SpecOf("r")->optimizer().learning_rate(), -0.5f);
  EXPECT_THAT(store_->tables().SpecOf("r")->held(), testing::ElementsAre("optimizer.learning_rate"));
}

TEST_F(ContinuedTableTest, APsWithoutShardsHasNoTablesToSet) {
  Make();
  for (ShardId shard = 0; shard < store_->shards().size(); ++shard) store_->shards().SetRole(shard, ShardRole::kNone);
  v1::SetTableRequest request;
  request.set_table("r");
  const auto set = store_->tables().Set(request);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_TRUE(set->absent());
}

TEST_F(ContinuedTableTest, AnotherShapeOptimizerOrUseOfRowsIsRefusedWithWhatToDo) {
  Make();
  ASSERT_TRUE(Ensure({AddingRows("r", 2), AddingDense("d", 10, 4)}).ok());
  using Change = std::function<void(v1::TableSpec*)>;
  const auto refused = [&](v1::TableSpec spec, const std::string& why, const Change& change) {
    change(&spec);
    const absl::Status status = Ensure({spec}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), HasSubstr("another server.data_dir"));
  };
  refused(AddingRows("r", 2), "it is embedding dim 2, not embedding dim 3",
          [](auto* spec) { spec->mutable_embedding()->set_dim(3); });
  refused(AddingRows("r", 2), "sgd, not adam", [](auto* spec) { spec->mutable_optimizer()->mutable_adam(); });
  refused(AddingRows("r", 2), "does not keep the use of its rows",
          [](auto* spec) { spec->mutable_embedding()->mutable_eviction()->set_rows_max(100); });
  refused(AddingDense("d", 10, 4), "it is dense [10], not dense [11]",
          [](auto* spec) { spec->mutable_dense()->set_dims(0, 11); });
  refused(AddingDense("d", 10, 4), "its blocks have 4, not 5",
          [](auto* spec) { spec->mutable_dense()->set_block_elements(5); });
}

TEST_F(ContinuedTableTest, AnObserverAndOneThatMayNotWriteChangeNothing) {
  Make();
  ASSERT_TRUE(Ensure({AddingRows("r", 2)}).ok());
  v1::TableSpec spec = AddingRows("r", 2);
  spec.mutable_optimizer()->set_learning_rate(-0.5f);
  ASSERT_TRUE(Ensure({spec}, /*worker=*/0).ok());
  EXPECT_EQ(store_->tables().SpecOf("r")->optimizer().learning_rate(), -1);
  v1::EnsureTablesRequest request;
  request.set_worker_incarnation(kWorker);
  request.set_keep_settings(true);
  *request.add_tables() = spec;
  ASSERT_TRUE(store_->EnsureTables(request).ok());
  EXPECT_EQ(store_->tables().SpecOf("r")->optimizer().learning_rate(), -1);
}

TEST_F(ContinuedTableTest, TheFirstModelStaysAndAnotherOneIsRefused) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  spec.mutable_model()->set_type("linear");
  ASSERT_TRUE(Ensure({spec}).ok());
  ASSERT_TRUE(Ensure({AddingRows("r", 2)}).ok()) << "of a program that describes no model";
  EXPECT_EQ(store_->tables().SpecOf("r")->model().type(), "linear");
  v1::EnsureTablesRequest request;
  request.add_describe("r");
  request.add_describe("none");
  const auto described = store_->EnsureTables(request);
  ASSERT_TRUE(described.ok()) << described.status();
  ASSERT_EQ(described->described_size(), 1);
  EXPECT_EQ(described->described(0).model().type(), "linear");
  spec.mutable_model()->set_type("fm");
  const absl::Status status = Ensure({spec}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"linear\" -> \"fm\""));
}

}  // namespace
}  // namespace lodestone::server
