#include "server/table/page_layout.h"

#include <algorithm>
#include <bit>

#include "common/base/limits.h"
#include "server/table/table.h"

namespace lodestone::server {

PageLayout::PageLayout(const Table& table) : row_floats(table.dim() + table.state_layout().FloatsFor(table.dim())) {
  const size_t row_bytes = sizeof(Key) + sizeof(uint32_t) + row_floats * sizeof(float);
  const size_t fitting = std::max<size_t>(1, limits::kPageBytesMax / row_bytes);
  rows_log2 = static_cast<uint32_t>(std::bit_width(fitting) - 1);
}

}  // namespace lodestone::server
