/* SPDX-License-Identifier: BSD-3-Clause */
/* This process's place where only the launcher's PMIx server tells it: prterun, a PRRTE DVM. */
#ifndef BERTH_BIN_EXEC_EXEC_PMIX_H
#define BERTH_BIN_EXEC_EXEC_PMIX_H

#include "exec/exec_place.h"

/* Asks in a child process that is gone before this returns: PROGRAM is a PMIx client of its own,
 * and must find the library unused. Then waits, at most 5 s, until all ranks of this node have
 * asked. 20 s at most. -ERR_UNAVAILABLE: no module ranks-pmix, no PMIx; -ERR_NETWORK: no answer;
 * -ERR_DATA: a place that cannot be. */
int exec_pmix_find(const struct env *env, struct exec_place *out, struct error *err);

#endif
