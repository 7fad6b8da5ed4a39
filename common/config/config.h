// The configuration: YAML read into v1::Config (proto/config.proto is the schema), strictly, then checked as a whole.
// All errors of a file are reported together, up to 20, one a line, as InvalidArgument:
//   FILE:LINE:COLUMN: model.optimizer.lerning_rate: unknown field (did you mean `learning_rate`?)
//   --set model.type: unknown value `deepfn` (did you mean `deepfm`?)
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/host_port.h"
#include "proto/config.pb.h"

namespace lodestone {

// What a configuration is read for.
enum class ConfigUse {
  kAny,
  kTraining,  // It has to say what is trained, and on what: model.type and data.train, or data.format: generated.
};

// Reads the file at `path`, then applies `sets`, each "a.b.c=VALUE" (see YamlReader::Set), in order,
// then checks the whole by ValidateConfig. Paths of data files stay as written: relative ones are relative to the
// current directory. NotFound if there is no such file. Thread-safe.
absl::StatusOr<v1::Config> LoadConfig(const std::string& path, absl::Span<const std::string> sets = {},
                                      ConfigUse use = ConfigUse::kAny);

// The same for YAML text at hand; `name` stands for the file in errors.
absl::StatusOr<v1::Config> ParseConfig(std::string_view text, std::string_view name,
                                       absl::Span<const std::string> sets = {}, ConfigUse use = ConfigUse::kAny);

// Checks what concerns more than one field or has a syntax of its own: addresses, indices, what fits the model, the
// format or the kind of table. LoadConfig and ParseConfig have done it. Errors are "PATH: what is wrong", one a line.
absl::Status ValidateConfig(const v1::Config& config);

// The effective configuration as YAML that ParseConfig reads back to the same: what is set, and what is not but has a
// default, marked "# default". Sections that every process has are printed even if they are not set.
std::string PrintConfig(const v1::Config& config);

}  // namespace lodestone
