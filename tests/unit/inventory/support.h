/* SPDX-License-Identifier: BSD-3-Clause */
/* What the tests of this stage share. TOPO is the folder of the hand-made topologies. */
#ifndef BERTH_TESTS_UNIT_INVENTORY_SUPPORT_H
#define BERTH_TESTS_UNIT_INVENTORY_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../support/files.h"
#include "inventory/inventory.h"

/* Load TOPO/name.xml, without this node's network; fails the test with the error's text. */
void load_fixture(const char *name, struct inventory *out);

/* Everything in a machine, a line a thing; free() it. */
char *describe(const struct inventory *inventory);

/* The set's text in a buffer that a later call overwrites (8 of them). */
const char *ids(const struct idset *set);

#endif
