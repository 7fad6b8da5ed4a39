#include "common/base/row_copy.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(RowCopy, CopiesRowsOfAnyLengthFromAndToAnyPlaceAndNothingBesideThem) {
  constexpr uint8_t kBefore = 0xee;
  for (size_t floats = 0; floats <= 130; ++floats) {
    for (const size_t offset : {0, 1, 3}) {
      const size_t bytes = floats * sizeof(float);
      std::vector<uint8_t> from(offset + bytes), to(offset + bytes + 1, kBefore);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 7 + floats);
      CopyRow(from.data() + offset, floats, to.data() + offset);
      for (size_t i = 0; i < to.size(); ++i) {
        const bool is_copied = i >= offset && i < offset + bytes;
        ASSERT_EQ(to[i], is_copied ? from[i] : kBefore) << "byte " << i << " of " << floats << " floats at " << offset;
      }
    }
  }
}

TEST(RowCopy, PrefetchTakesAnyAddress) {
  PrefetchRow(nullptr, 0);
  PrefetchRow<RowUse::kWrite>(nullptr, 4096);
}

}  // namespace
}  // namespace lodestone
