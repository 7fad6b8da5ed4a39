// An error in a configuration or in a table's specification.
#pragma once

#include <string>

namespace lodestone {

struct ConfigProblem {
  std::string path;  // Of the field: "server.advertise", "data.train[1]".
  std::string what;
};

}  // namespace lodestone
