// Strict reader of YAML into protobuf messages, by reflection: a field that the schema lacks, a value of another type
// or out of range, a field given twice or two of one oneof are errors, and all of them are found, not only the first.
//
// What is read as what: a mapping is a message (an empty one or nothing is a message that is present and empty) or a
// map; a list is a repeated field, and so is a single value; an enum's value is its name in any case; whole numbers may
// be written 1_000_000, 1e6 or 0xff, and in a field whose name ends in "_bytes" also 64MiB; a string may be any scalar.
// Aliases work; tags and merge keys do not.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace lodestone {

// Errors that one status lists; further ones are only counted.
inline constexpr size_t kReadErrorsMax = 20;

// Reads text and overrides into one message and collects what is wrong. Not thread-safe; must not outlive the message.
class YamlReader {
 public:
  // `message` takes the values; what is set in it already stays unless the text sets it.
  explicit YamlReader(google::protobuf::Message* message) : message_(message) {}
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;

  // Reads a whole text; `name` stands for it in errors: "NAME:LINE:COLUMN: PATH: what is wrong".
  void Read(std::string_view text, std::string_view name);

  // Applies one "PATH=VALUE", in which the value is YAML: "train.epochs=3", "data.train=a.txt" (replaces the list),
  // "data.train=[a.txt, b.txt]", "data.label_map.spam=1" (one entry of a map), "model.optimizer.adam=" (present and
  // empty; takes the place of another of its oneof), "model.optimizer={adam: {beta1: 0.8}}" (replaces the message). For
  // a string the value is taken as it is unless it starts with a quote, or "[" for a repeated one.
  // Errors are "--set PATH: what is wrong".
  void Set(std::string_view assignment);

  // Adds an error about the field at `path`, located where that field or the nearest one around it was read from.
  void AddError(const std::string& path, const std::string& what);

  // OK, or InvalidArgument with all errors, one a line.
  absl::Status status() const;

 private:
  class Walk;

  void AddErrorLine(std::string line);

  google::protobuf::Message* const message_;
  std::map<std::string, std::string> locations_;  // By path: "FILE:LINE:COLUMN" or "--set PATH".
  std::vector<std::string> errors_;               // The first kReadErrorsMax.
  size_t error_count_ = 0;
};

}  // namespace lodestone
