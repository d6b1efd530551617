/* SPDX-License-Identifier: BSD-3-Clause */
/* A module for test_module.c. With BROKEN it needs a symbol that no library defines. */
extern const int test_value __attribute__((visibility("default")));

#ifdef BROKEN
extern int test_symbol_of_a_library_that_is_not_there(void);
extern int (*const test_needs)(void) __attribute__((visibility("default")));
int (*const test_needs)(void) = test_symbol_of_a_library_that_is_not_there;
#endif

const int test_value = 4711;
