#include "worker/data/vocabulary.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

constexpr char kOption[] = "csv.vocabulary_of";

// Where the column that `spec` names stands among the layout's categorical ones.
absl::StatusOr<size_t> PlaceOf(const std::string& spec, const ColumnResolver& resolver, const CsvLayout& layout) {
  LODESTONE_ASSIGN_OR_RETURN(const ColumnResolver::Columns columns, resolver.Find(kOption, spec));
  if (columns.indices.size() != 1) return resolver.Error(absl::StrCat(kOption, ": \"", spec, "\" is not one column"));
  for (size_t i = 0; i < layout.categorical.size(); ++i) {
    if (layout.categorical[i] == columns.indices[0] && !layout.buckets[i].time.is_set()) return i;
  }
  return resolver.Error(absl::StrCat(kOption, ": ", layout.names[columns.indices[0]],
                                     " has no categories; name it in csv.categorical, csv.multi or csv.bucket"));
}

}  // namespace

absl::Status ShareVocabularies(const v1::CsvConfig& config, const ColumnResolver& resolver, CsvLayout* layout) {
  const std::map<std::string, std::string> pairs(config.vocabulary_of().begin(), config.vocabulary_of().end());
  layout->vocabulary_of.assign(layout->categorical.size(), "");
  for (const auto& [name, other] : pairs) {
    LODESTONE_ASSIGN_OR_RETURN(const size_t own, PlaceOf(name, resolver, *layout));
    LODESTONE_ASSIGN_OR_RETURN(const size_t from, PlaceOf(other, resolver, *layout));
    const std::string& name_of_other = layout->names[layout->categorical[from]];
    if (own == from) return resolver.Error(absl::StrCat(kOption, ": ", name_of_other, " is its own anyhow"));
    if (pairs.contains(other)) {
      return resolver.Error(absl::StrCat(kOption, ": ", name_of_other, " has the categories of ", pairs.at(other),
                                         "; name that one for \"", name, "\" too"));
    }
    if (layout->buckets[own].kind != layout->buckets[from].kind ||
        layout->buckets[own].kind == BucketRule::Kind::kQuantiles) {
      return resolver.Error(absl::StrCat(kOption, ": ", layout->names[layout->categorical[own]], " and ", name_of_other,
                                         " make their categories in different ways (csv.bucket)"));
    }
    layout->salts[own] = layout->salts[from];
    layout->vocabulary_of[own] = layout->plain_names[layout->categorical[from]];
  }
  return absl::OkStatus();
}

absl::Status CheckVocabulary(const v1::DataDescription::CategoricalColumn& known, const CsvLayout& layout, size_t i,
                             const std::string& file) {
  const std::string& wanted = layout.vocabulary_of[i];
  if (wanted.empty() || wanted == known.vocabulary_of()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": the model was trained with ",
                   known.vocabulary_of().empty() ? std::string("categories of its own")
                                                 : absl::StrCat("the categories of \"", known.vocabulary_of(), "\""),
                   " for ", layout.names[layout.categorical[i]], "; set ", kOption, " as it was"));
}

}  // namespace lodestone::worker
