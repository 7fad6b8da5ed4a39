// "label key:value key:value ... # comment", as LIBSVM and libFM write it. A key is the index as it stands, of any
// size; keys may repeat; what follows "qid:" is the sample's group. With fields "label field:key:value ...", as libffm
// writes it: the key in the tables is the hash of the index's text, with the field as the salt.
#pragma once

#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

class LibsvmParser final : public LineParser {
 public:
  // Values are transformed by `transform`, one that does not standardize.
  // With `label_optional`, a line may begin with a feature.
  explicit LibsvmParser(v1::Transform transform, bool label_optional = false, bool fields = false)
      : transform_(transform), label_optional_(label_optional), fields_(fields) {}

  LineOutcome Parse(absl::string_view line, ParsedLine* parsed, LineError* error) override;

 private:
  const v1::Transform transform_;
  const bool label_optional_;
  const bool fields_;
};

// Whether the line says of which group its sample is.
bool HasLibsvmGroup(absl::string_view line);

}  // namespace lodestone::worker
