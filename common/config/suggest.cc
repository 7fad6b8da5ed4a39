#include "common/config/suggest.h"

#include <algorithm>

namespace lodestone {
namespace {

// Longer names are no slips, and the distance takes the product of the lengths.
constexpr size_t kNameBytesMax = 100;

std::string Fold(std::string_view name) {
  std::string folded(name);
  for (char& c : folded) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-' || c == ' ') c = '_';
  }
  return folded;
}

struct Synonym {
  std::string_view word;
  std::string_view field;
};
constexpr Synonym kSynonyms[] = {{"lr", "learning_rate"},     {"lr_rate", "learning_rate"}, {"bs", "batch_size"},
                                 {"batchsize", "batch_size"}, {"epoch", "epochs"},          {"dim", "embedding_dim"},
                                 {"layers", "hidden"},        {"hidden_units", "hidden"}};

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  // Rows i - 2, i - 1 and i of the table of distances between the first i of `a` and the first j of `b`.
  std::vector<int> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string Nearest(std::string_view name, const std::vector<std::string>& valid) {
  if (name.empty() || name.size() > kNameBytesMax) return "";
  const std::string folded = Fold(name);
  std::string best;
  int best_distance = 0;
  for (const std::string& candidate : valid) {
    const std::string folded_candidate = Fold(candidate);
    int distance = EditDistance(folded, folded_candidate);
    // "batch" for "batch_size": one is the other's beginning.
    const size_t shorter = std::min(folded.size(), folded_candidate.size());
    if (shorter >= 3 && folded.compare(0, shorter, folded_candidate, 0, shorter) == 0) distance = std::min(distance, 2);
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  const int allowed = std::max(1, static_cast<int>(std::max(name.size(), best.size())) * 2 / 5);
  return best_distance <= allowed ? best : "";
}

std::string WithoutSynonym(const std::string& name) {
  const std::string folded = Fold(name);
  const auto* found = std::find_if(std::begin(kSynonyms), std::end(kSynonyms),
                                   [&](const Synonym& synonym) { return synonym.word == folded; });
  return found == std::end(kSynonyms) ? name : std::string(found->field);
}

}  // namespace lodestone
