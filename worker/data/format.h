// Detection of a data file's format.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"

namespace lodestone::worker {

// The format of `file`, for data.format AUTO, from its name and first bytes or lines: IDX, PARQUET and CRITEO_NPY by
// their magic numbers; LIBSVM by the ending .libsvm, .svm or .libfm, or "key:value" after the label; LIBFFM by .libffm
// or .ffm, or "field:key:value"; CRITEO by 40 columns of a label, integers and hexadecimal categories; else CSV.
absl::StatusOr<v1::DataConfig::Format> DetectFormat(const std::string& file);

}  // namespace lodestone::worker
