// CHECK is for our own bugs only; bytes from the network or a file never reach one.
#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the process if `condition` does not hold.
#define LODESTONE_CHECK(condition)                                                                           \
  do {                                                                                                       \
    if (!(condition)) [[unlikely]] {                                                                         \
      std::fprintf(stderr, "%s:%d: a bug in Lodestone: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                                          \
    }                                                                                                        \
  } while (false)
