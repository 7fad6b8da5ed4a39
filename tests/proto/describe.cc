// Prints the protocol of this version. After a release:
//   bazel run //tests/proto:describe > tests/proto/former_protocol.txt
#include <cstdio>

#include "tests/proto/protocol.h"

int main() {
  for (const std::string& line : lodestone::ProtocolLines()) std::printf("%s\n", line.c_str());
  return 0;
}
