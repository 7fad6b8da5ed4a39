// Columns whose categories are those of another column (csv.vocabulary_of): the same text is one key in both.
//
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/column_resolver.h"
#include "worker/data/csv_layout.h"

namespace lodestone::worker {

// Gives the named columns of a layout the salts of those whose categories they have. INVALID_ARGUMENT, naming option
// and column, if one of the two is no column of categories, or both make categories in different ways.
absl::Status ShareVocabularies(const v1::CsvConfig& config, const ColumnResolver& resolver, CsvLayout* layout);

// INVALID_ARGUMENT if the configuration has column `i` of a layout share its categories, and the model's column does
// not.
absl::Status CheckVocabulary(const v1::DataDescription::CategoricalColumn& known, const CsvLayout& layout, size_t i,
                             const std::string& file);

}  // namespace lodestone::worker
