// Of all builds but those for a release; see BUILD.
#include "common/base/version.h"

namespace lodestone {

const char kCommit[] = "";

}  // namespace lodestone
