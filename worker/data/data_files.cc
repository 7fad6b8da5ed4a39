#include "worker/data/data_files.h"

#include <sys/stat.h>

#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/data/criteo_npy.h"
#include "worker/data/file_list.h"
#include "worker/data/format.h"

namespace lodestone::worker {
namespace {

using Format = v1::DataConfig;

std::vector<std::string> List(const google::protobuf::RepeatedPtrField<std::string>& list) {
  return {list.begin(), list.end()};
}

// The label files of `images`, given or derived.
absl::StatusOr<std::vector<std::string>> LabelFiles(const std::vector<std::string>& images,
                                                    const std::vector<std::string>& labels, absl::string_view option) {
  std::vector<std::string> files;
  if (labels.empty()) {
    for (const std::string& image : images) {
      LODESTONE_ASSIGN_OR_RETURN(files.emplace_back(), LabelFileOf(image, option));
    }
    return files;
  }
  LODESTONE_ASSIGN_OR_RETURN(files, ExpandFiles(labels, option));
  if (files.size() == images.size()) return files;
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", files.size(), " label files for ", images.size(), " image files"));
}

// The files of a list by what they are, however they are called; files that are not there are left to those that read
// them. INVALID_ARGUMENT if one is there twice. `option` is what errors call the list.
absl::StatusOr<std::map<std::pair<uint64_t, uint64_t>, std::string>> Distinct(const std::vector<std::string>& files,
                                                                              absl::string_view option) {
  std::map<std::pair<uint64_t, uint64_t>, std::string> distinct;
  struct stat info;
  for (const std::string& file : files) {
    if (stat(file.c_str(), &info) != 0) continue;
    const auto [before, is_new] = distinct.emplace(std::pair(info.st_dev, info.st_ino), file);
    if (is_new) continue;
    const std::string called = before->second == file ? "" : absl::StrCat(", the other time as ", before->second);
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", file, " is there twice", called,
                                                   ": its samples would count twice. Let one pattern alone match it"));
  }
  return distinct;
}

absl::Status CheckApart(const DataFiles& files) {
  LODESTONE_ASSIGN_OR_RETURN(const auto train, Distinct(files.train, "data.train"));
  LODESTONE_ASSIGN_OR_RETURN(const auto test, Distinct(files.test, "data.test"));
  for (const auto& [id, file] : test) {
    const auto same = train.find(id);
    if (same == train.end()) continue;
    const std::string called = same->second == file ? "" : absl::StrCat(", as ", same->second);
    return absl::InvalidArgumentError(
        absl::StrCat("data.test: ", file, " is in data.train too", called,
                     ": the test metrics would be of samples that were trained on. Let data.train not match it, or "
                     "leave data.test out and set data.test_share"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsGenerated(const v1::DataConfig& config) {
  return config.format() == Format::GENERATED ||
         (config.format() == Format::AUTO && config.train().empty() && config.has_generated());
}

absl::StatusOr<FoundData> FindData(const v1::DataConfig& config, bool with_test) {
  if (config.train().empty()) {
    return absl::InvalidArgumentError(
        config.format() == Format::AUTO
            ? "data.train: must name the training files; data.format: generated trains on data made from a seed"
            : absl::StrCat("data.train is empty, but data.format is ", Format::Format_Name(config.format())));
  }
  if (config.test_share() > 0 && !config.test().empty()) {
    return absl::InvalidArgumentError("data.test and data.test_share are two test sets: leave one of them out");
  }
  FoundData found;
  LODESTONE_ASSIGN_OR_RETURN(found.files.train, ExpandFiles(List(config.train()), "data.train"));
  // A worker that does not judge need not have the test files.
  absl::StatusOr<std::vector<std::string>> test = ExpandFiles(List(config.test()), "data.test");
  if (with_test && !test.ok()) return test.status();
  if (test.ok()) found.files.test = *std::move(test);
  LODESTONE_RETURN_IF_ERROR(CheckApart(found.files));
  if (!with_test) found.files.test.clear();

  found.format = config.format();
  if (found.format == Format::AUTO) {
    LODESTONE_ASSIGN_OR_RETURN(found.format, DetectFormat(found.files.train[0]));
    // A configuration of columns means CSV.
    const bool is_text =
        found.format != Format::IDX && found.format != Format::PARQUET && found.format != Format::CRITEO_NPY;
    if (config.csv().ByteSizeLong() > 0 && is_text) found.format = Format::CSV;
    if (config.csv().ByteSizeLong() > 0 && found.format != Format::CSV && found.format != Format::PARQUET) {
      return absl::InvalidArgumentError(absl::StrCat("data.csv: ", found.files.train[0], " is read as ",
                                                     absl::AsciiStrToLower(Format::Format_Name(found.format)),
                                                     ", whose samples have no columns to name; leave data.csv out"));
    }
  }
  if (found.format == Format::CRITEO_NPY) {
    LODESTONE_ASSIGN_OR_RETURN(found.files.train, DaysOf(found.files.train, "data.train"));
    LODESTONE_ASSIGN_OR_RETURN(found.files.test, DaysOf(found.files.test, "data.test"));
  }
  if (found.format != Format::IDX) {
    if (config.train_labels().empty() && config.test_labels().empty()) return found;
    return absl::InvalidArgumentError(absl::StrCat("data.train_labels and data.test_labels are for IDX files, but ",
                                                   found.files.train[0], " is read as ",
                                                   Format::Format_Name(found.format)));
  }
  LODESTONE_ASSIGN_OR_RETURN(found.train_labels,
                             LabelFiles(found.files.train, List(config.train_labels()), "data.train_labels"));
  if (found.files.test.empty()) return found;
  LODESTONE_ASSIGN_OR_RETURN(found.test_labels,
                             LabelFiles(found.files.test, List(config.test_labels()), "data.test_labels"));
  return found;
}

}  // namespace lodestone::worker
