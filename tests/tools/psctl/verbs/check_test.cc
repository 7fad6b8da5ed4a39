// psctl check: is a configuration right, and its data?
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/verbs/psctl_call.h"
#include "tests/worker/data/npy_files.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Written(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
  std::ofstream(path) << text;
  return path;
}

// A configuration of a CSV file with these rows.
std::string ConfigOf(const std::string& rows, const std::string& model = "type: linear", const std::string& more = "") {
  const std::string data = Written("rows.csv", rows);
  return Written("data.yaml",
                 absl::StrCat("model: {", model, "}\ndata:\n  train: ", data, "\n  csv: {label: y}\n", more));
}

std::string Clicks() {
  std::string rows = "y,age,income,same\n";
  for (int i = 0; i < 60; ++i) absl::StrAppend(&rows, i % 3 == 0, ",", i % 7, ",", i * 1000, ",5\n");
  return rows;
}

TEST(Check, WhatIsToBeTrainedAndOnWhatHasToBeSaid) {
  const PsctlCall data({"check", Written("nodata.yaml", "model: {type: linear}\ndata: {test: my.csv}\n")});
  EXPECT_EQ(data.exit_code, kExitUsage);
  EXPECT_THAT(data.errors, HasSubstr("nodata.yaml:2:1: data.train: must name the training files"));
  const PsctlCall model({"check", Written("notype.yaml", "model: {embedding_dim: 4}\ndata: {format: generated}\n")});
  EXPECT_EQ(model.exit_code, kExitUsage);
  EXPECT_THAT(model.errors, HasSubstr("notype.yaml:1:1: model.type: must name the model: linear, fm, mf, deepfm"));
  const PsctlCall local({"local", Written("empty.yaml", "# nothing\n")});
  EXPECT_EQ(local.exit_code, kExitUsage);
  EXPECT_THAT(local.errors, HasSubstr("data.train: must name"));
  // The file of a ps says nothing about that.
  EXPECT_EQ(PsctlCall({"check", Written("ps.yaml", "cluster: {servers: 1}\n")}).exit_code, kExitDone);
}

TEST(Check, LooksAtTheDataAndSaysWhatLooksWrong) {
  const PsctlCall call({"check", ConfigOf(Clicks()), "--data"});
  EXPECT_EQ(call.exit_code, kExitDone) << call.errors;
  EXPECT_THAT(call.output, HasSubstr("csv (detected), with a header, separated by \",\""));
  EXPECT_THAT(call.output, HasSubstr("all 60 rows"));
  EXPECT_THAT(call.output, HasSubstr("y: 2 classes: 0 (66.7 %), 1 (33.3 %)"));
  EXPECT_THAT(call.output, HasSubstr("warning: a column with one value in all 60 rows (same)"));
  EXPECT_THAT(call.output, HasSubstr("warning: a column with numbers far apart in all 60 rows (income)"));
  EXPECT_THAT(call.output, HasSubstr("warning: nothing judges the model"));
  EXPECT_THAT(call.output, Not(HasSubstr("error")));
}

TEST(Check, ItsJsonHasColumnsAndFindings) {
  const PsctlCall call({"check", ConfigOf(Clicks()), "--data", "--json", "--rows", "10"});
  EXPECT_EQ(call.exit_code, kExitDone) << call.errors;
  const auto json = nlohmann::json::parse(call.output);
  EXPECT_EQ(json["rows"], 10);
  EXPECT_EQ(json["whole"], false);
  EXPECT_EQ(json["columns"].size(), 3u);
  EXPECT_EQ(json["columns"][1]["name"], "income");
  EXPECT_EQ(json["columns"][1]["greatest"], 9000);
  EXPECT_FALSE(json["findings"].empty());
}

TEST(Check, LabelsThatMayBeNumbersAreAskedAbout) {
  std::string rows = "y,a\n";
  for (int i = 0; i < 300; ++i) absl::StrAppend(&rows, i * 7 % 302, ",", i % 5, "\n");
  const PsctlCall asks({"check", ConfigOf(rows), "--data"});
  EXPECT_EQ(asks.exit_code, kExitFailed);
  EXPECT_THAT(asks.output, HasSubstr("error: the labels are 300 distinct numbers"));
  EXPECT_EQ(PsctlCall({"check", ConfigOf(rows, "type: linear, loss: squared"), "--data"}).exit_code, kExitDone);
  EXPECT_EQ(PsctlCall({"check", ConfigOf(rows, "type: linear, loss: softmax"), "--data"}).exit_code, kExitDone);
}

TEST(Check, AModelThatDoesNotFitTheDataIsAnError) {
  const PsctlCall call({"check", ConfigOf(Clicks(), "type: dlrm, hidden: [4]"), "--data"});
  EXPECT_EQ(call.exit_code, kExitFailed);
  EXPECT_THAT(call.output, HasSubstr("error: model.type: dlrm needs categorical fields"));
}

TEST(Check, ATestSetThatIsTrainedOnIsAnError) {
  const std::string config = ConfigOf(Clicks());
  const PsctlCall call(
      {"check", config, "--data", "--set", absl::StrCat("data.test=", std::getenv("TEST_TMPDIR"), "/rows.csv")});
  EXPECT_NE(call.exit_code, kExitDone);
  EXPECT_THAT(call.errors, HasSubstr("is in data.train too"));
}

TEST(Check, AFeatureThatIsOrTellsTheLabelIsWorthALook) {
  std::string rows = "y,copy,told,age\n";
  for (int i = 0; i < 60; ++i) absl::StrAppend(&rows, i % 3 == 0, ",", i % 3 == 0, ",", i % 3, ",", i % 7, "\n");
  const PsctlCall call({"check", ConfigOf(rows), "--data"});
  EXPECT_EQ(call.exit_code, kExitDone);
  EXPECT_THAT(call.output, HasSubstr("warning: copy is the label itself in all 60 rows: put it into csv.ignore"));
  EXPECT_THAT(call.output, HasSubstr("warning: told tells the label of all 60 rows"));
  EXPECT_THAT(call.output, Not(HasSubstr("age tells")));
}

TEST(Check, WeightsAreShownAndThoseFarFromOneWarnedOf) {
  std::string rows = "y,w,a\n", zeros = "y,w,a\n";
  for (int i = 0; i < 40; ++i) absl::StrAppend(&rows, i % 3 == 0, ",", i % 4 == 0 ? 0 : 100, ",", i % 7, "\n");
  for (int i = 0; i < 40; ++i) absl::StrAppend(&zeros, i % 3 == 0, ",0,", i % 7, "\n");
  const PsctlCall call({"check", ConfigOf(rows), "--data", "--set", "data.csv.weight=w"});
  EXPECT_EQ(call.exit_code, kExitDone) << call.errors;
  EXPECT_THAT(call.output, HasSubstr("w: mean 75, from 0 to 100, 0 in 25 %"));
  EXPECT_THAT(call.output, HasSubstr("warning: the weights (w) are 75 in the mean of all 40 rows"));
  const PsctlCall json({"check", ConfigOf(rows), "--data", "--json", "--set", "data.csv.weight=w"});
  EXPECT_EQ(nlohmann::json::parse(json.output)["weight"]["mean"], 75);
  const PsctlCall none({"check", ConfigOf(zeros), "--data", "--set", "data.csv.weight=w"});
  EXPECT_EQ(none.exit_code, kExitFailed);
  EXPECT_THAT(none.output, HasSubstr("error: the weight (w) is 0 in all 40 rows"));
}

TEST(Check, LogarithmsOfNpyFilesAreNotTakenAgainWithoutAWord) {
  worker::NpyDay day(50);
  for (float& number : day.numbers) number = std::log(number + 3);
  day.dense = worker::NpyOf("50, 13", day.numbers);
  const std::string config = Written(
      "npy.yaml", absl::StrCat("model: {type: linear}\ndata: {train: ", day.Write("day_0"), ", test_share: 0.1}\n"));
  const PsctlCall call({"check", config, "--data"});
  EXPECT_EQ(call.exit_code, kExitDone) << call.errors;
  EXPECT_THAT(call.output, HasSubstr("criteo_npy (detected)"));
  EXPECT_THAT(call.output, HasSubstr("13 numbers, 26 fields"));
  EXPECT_THAT(call.output, Not(HasSubstr("warning")));
  const PsctlCall twice({"check", config, "--data", "--set", "data.numeric=log_standardize"});
  EXPECT_EQ(twice.exit_code, kExitDone) << twice.errors;
  EXPECT_THAT(twice.output, HasSubstr("warning: no number in all 50 rows is above 22.2: they seem to be logarithms"));
}

}  // namespace
}  // namespace lodestone::psctl
