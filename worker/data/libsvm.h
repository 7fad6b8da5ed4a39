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
  // With `label_optional`, a line may begin with a feature.
  explicit LibsvmParser(v1::Transform transform, bool label_optional = false)
      : transform_(transform), label_optional_(label_optional) {}

  LineOutcome Parse(absl::string_view line, ParsedLine* parsed, LineError* error) override;

 private:
  const v1::Transform transform_;
  const bool label_optional_;
};

}  // namespace lodestone::worker
