#include "common/config/config.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/config_check.h"
#include "common/config/yaml_printer.h"
#include "common/config/yaml_reader.h"
#include "common/config/yaml_tree.h"

namespace lodestone {
namespace {

// The text of a file, of which at most one byte more than the reader takes is read.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  const auto error = [&](int error_number) {
    const std::string message = absl::StrCat(path, ": cannot be read: ", std::strerror(error_number));
    return error_number == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
  };
  if (file == nullptr) return error(errno);
  std::string text(kYamlBytesMax + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return error(errno);
  if (text.size() > kYamlBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": longer than ", kYamlBytesMax, " bytes"));
  }
  return text;
}

}  // namespace

absl::StatusOr<v1::Config> LoadConfig(const std::string& path, absl::Span<const std::string> sets, ConfigUse use) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  return ParseConfig(*text, path, sets, use);
}

absl::StatusOr<v1::Config> ParseConfig(std::string_view text, std::string_view name, absl::Span<const std::string> sets,
                                       ConfigUse use) {
  v1::Config config;
  YamlReader reader(&config);
  reader.Read(text, name);
  for (const std::string& set : sets) reader.Set(set);
  // What could not be read is missing, and would only give errors that are none.
  if (reader.status().ok()) {
    for (const ConfigProblem& problem : CheckConfig(config)) reader.AddError(problem.path, problem.what);
    if (use == ConfigUse::kTraining) {
      for (const ConfigProblem& problem : CheckTraining(config)) reader.AddError(problem.path, problem.what);
    }
  }
  if (absl::Status status = reader.status(); !status.ok()) return status;
  return config;
}

absl::Status ValidateConfig(const v1::Config& config) {
  std::vector<std::string> lines;
  for (const ConfigProblem& problem : CheckConfig(config))
    lines.push_back(absl::StrCat(problem.path, ": ", problem.what));
  return lines.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

std::string PrintConfig(const v1::Config& config) {
  v1::Config full = config;
  full.mutable_cluster();
  full.mutable_coordinator();
  full.mutable_server();
  full.mutable_worker();
  full.mutable_log();
  full.mutable_train();
  return PrintYaml(full);
}

}  // namespace lodestone
