// "label key:value key:value ... # comment", as LIBSVM and libFM write it. A key is the index as it stands, of any
// size; keys may repeat; "qid:..." is skipped.
#pragma once

#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

class LibsvmParser final : public LineParser {
 public:
  // Values are transformed by `transform`, one that does not standardize.
  explicit LibsvmParser(v1::Transform transform) : transform_(transform) {}

  LineOutcome Parse(absl::string_view line, ParsedLine* parsed, LineError* error) override;

 private:
  const v1::Transform transform_;
};

}  // namespace lodestone::worker
