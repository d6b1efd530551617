/* SPDX-License-Identifier: BSD-3-Clause */
/* This process's place if only the launcher's PMIx server knows it: prterun, a PRRTE DVM. */
#ifndef BERTH_BIN_EXEC_EXEC_PMIX_H
#define BERTH_BIN_EXEC_EXEC_PMIX_H

#include "exec/exec_place.h"

/* Query in a child process that has ended before this returns: PROGRAM is a PMIx client itself and
 * must find the library unused. Then wait at most 5 s until all ranks of this node have queried; 20
 * s at most in all. Return 0; -ERR_UNAVAILABLE without the module ranks-pmix or PMIx; -ERR_NETWORK
 * without an answer; -ERR_DATA for an impossible place. */
int exec_pmix_find(const struct env *env, struct exec_place *out, struct error *err);

#endif
