/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BERTH_TESTS_OP_CHECK_H
#define BERTH_TESTS_OP_CHECK_H

#include "train/device/device.h"

/* Check that call's shapes and types match and that required tensors are present. Pure. Return 0 or
 * -ERR_INTERNAL; err names op and tensor. */
int op_check(const struct op_call *call, struct error *err);

#endif
