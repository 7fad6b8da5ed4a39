// The columns of files beside those that a model was trained on.
//
// Thread safety: pure functions but for the layout.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/csv_layout.h"

namespace lodestone::worker {

// Puts the features of a layout, which is of `file`, into the order that a model knows, with its salts.
// INVALID_ARGUMENT, naming file and column, if they are not such as it was trained on.
absl::Status ArrangeAsKnown(const v1::DataDescription& known, const std::string& file, CsvLayout* layout);

// INVALID_ARGUMENT, naming file and column, if an index or a range in `config` names another label, group or weight of
// `layout` than a model was trained on. What is named by its name is what the user wants.
absl::Status CheckIndexed(const v1::DataDescription& known, const v1::CsvConfig& config, const std::string& file,
                          const CsvLayout& layout);

// INVALID_ARGUMENT: a model was trained with the transform `known` of `column`, and the configuration says `now`.
absl::Status OtherTransform(absl::string_view file, const std::string& column, const std::string& known,
                            v1::Transform now);

}  // namespace lodestone::worker
