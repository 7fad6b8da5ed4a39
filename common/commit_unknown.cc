// Of all builds but those for a release; see BUILD.
#include "common/version.h"

namespace lodestone {

const char kCommit[] = "";

}  // namespace lodestone
