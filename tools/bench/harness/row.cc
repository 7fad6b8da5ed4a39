#include "tools/bench/harness/row.h"

#include "nlohmann/json.hpp"

namespace lodestone::bench {

using Json = nlohmann::ordered_json;

const std::vector<double>* Row::Find(const std::string& metric) const {
  const auto found = values.find(metric);
  return found == values.end() ? nullptr : &found->second;
}

std::string ToJson(const Row& row) {
  Json object;
  object["bench"] = row.bench;
  object["name"] = row.name;
  object["unit"] = row.unit;
  if (!row.cpu_unit.empty()) object["cpu_unit"] = row.cpu_unit;
  object["values"] = row.values;
  return object.dump();
}

std::string ToJson(const std::map<std::string, std::string>& machine) {
  Json object;
  object["machine"] = machine;
  return object.dump();
}

}  // namespace lodestone::bench
