// `psctl check --data`: the first rows of the data, what they hold and what looks wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "proto/config.pb.h"
#include "worker/data/data_survey.h"

namespace lodestone::psctl {

struct DataFinding {
  bool is_error = false;  // Training would fail, or be of no use; otherwise it is worth a look.
  std::string text;       // What is wrong, and what to do.
};

// What is wrong with such data for the configured model. Errors come first.
std::vector<DataFinding> JudgeData(const v1::Config& config, const worker::DataSurvey& survey);

// Both, for people and for programs.
std::string DataText(const worker::DataSurvey& survey, const std::vector<DataFinding>& findings);
nlohmann::ordered_json DataJson(const worker::DataSurvey& survey, const std::vector<DataFinding>& findings);

// Looks at the data of a configuration and prints what comes of it. Returns the exit code (exit_code.h): kExitFailed if
// there is an error among the findings.
int RunDataCheck(const v1::Config& config, uint64_t rows_max, bool json);

}  // namespace lodestone::psctl
