/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the tests of this stage. TOPO is the directory of the handwritten topologies. */
#ifndef BERTH_TESTS_UNIT_INVENTORY_SUPPORT_H
#define BERTH_TESTS_UNIT_INVENTORY_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../support/files.h"
#include "inventory/inventory.h"

/* Load TOPO/name.xml without this node's network. On failure the test fails with the error. */
void load_fixture(const char *name, struct inventory *out);

/* Describe the inventory as text, one line per item. The caller frees it. */
char *describe(const struct inventory *inventory);

/* The set as text, in one of 8 static buffers that take turns. */
const char *ids(const struct idset *set);

#endif
