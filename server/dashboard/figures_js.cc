// Writes the page's description of a table's figures to standard output, as JavaScript.
#include <cstdio>

#include "common/telemetry/figures.h"
#include "proto/admin.pb.h"

int main() {
  std::printf("// The figures of a table, as admin.proto's TableStatus has them.\n\nconst TABLE_FIGURES = %s;\n",
              lodestone::FiguresJson(*lodestone::v1::TableStatus::descriptor()).c_str());
  return std::fflush(stdout) == 0 ? 0 : 1;
}
