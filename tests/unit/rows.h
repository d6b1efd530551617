/* SPDX-License-Identifier: BSD-3-Clause */
/* cmocka with what its header needs before it. */
#ifndef BERTH_TESTS_ROWS_H
#define BERTH_TESTS_ROWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS(table) (sizeof(table) / sizeof *(table))

#endif
