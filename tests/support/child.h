/* SPDX-License-Identifier: BSD-3-Clause */
/* Child processes of a test, which can only fail by their exit code. */
#ifndef BERTH_TESTS_CHILD_H
#define BERTH_TESTS_CHILD_H

#include <stdio.h>

/* Print this place in the source, and return code: "return FAILED_HERE(12);". */
#define FAILED_HERE(code) (fprintf(stderr, "%s:%d: code %d\n", __FILE__, __LINE__, code), (code))

#endif
