// Predictions by another program: read_model.py, which reads a kept model with NumPy alone.
#pragma once

#include <string>
#include <vector>

namespace lodestone {

// Whether the system's Python has NumPy.
bool HasNumpy();
// A line for each sample of the file: "score", or "class score". The test fails if the program does.
std::vector<std::string> ByNumpy(const std::string& model, const std::string& data);
// The lines of a file; none if it cannot be read.
std::vector<std::string> Lines(const std::string& path);

}  // namespace lodestone
