// Runs tools/bundle, tools/deb and tools/wheel on this build's programs, and other commands, for tests of what they
// make.
#pragma once

#include <string>
#include <vector>

namespace lodestone {

// The time that releases of these tests are made for, as their makers' environment has it.
inline constexpr char kEpoch[] = "SOURCE_DATE_EPOCH=1767323045";

// A folder of this test's own, empty.
std::string EmptyFolder(const std::string& name);

// The output of a command; the test fails, with it, unless it ends with 0.
std::string Do(const std::string& command);
// The output of a command that must end with `exit_code`.
std::string DoFail(const std::string& command, int exit_code);

// The lines of a text.
std::vector<std::string> LinesOf(const std::string& text);

// A folder with this build's ps, worker, psctl and liblodestone.so.
std::string ProgramsFolder();

// What tools/TOOL makes of them in an empty folder `name`: the path of the one file there whose name is like `pattern`.
std::string Make(const std::string& tool, const std::string& name, const std::string& environment = "",
                 const std::string& pattern = "*");

// A program in Python that trains by two servers that it starts; it prints "[1.0, 1.0, 1.0] " and the version. Without
// single quotes.
inline constexpr char kPythonTraining[] =
    "import lodestone, numpy\n"
    "with lodestone.local(2) as servers, servers.connect() as cluster:\n"
    "    table = cluster.dense(\"t\", 3, lodestone.SGD(-1))\n"
    "    print(table.push_pull(numpy.ones(3)).result().tolist(), lodestone.version())\n";

// The command line of a small training by psctl, in an empty environment.
std::string SmallTraining(const std::string& psctl, const std::string& config);

}  // namespace lodestone
