/* SPDX-License-Identifier: BSD-3-Clause */
/* A process above the agent that outlives it: when the agent is killed, and its head with it,
 * what ranks have put into sessions of their own has nobody else who would end it. */
#ifndef BERTH_PROCESS_GUARDIAN_H
#define BERTH_PROCESS_GUARDIAN_H

#include <sys/types.h>

#include "base/error.h"

/* Fork: the caller goes on in the child, in a session of its own, and learns its guardian's pid.
 * The parent stays as the guardian, holds no descriptor of the caller's, adopts what its
 * descendants orphan, passes the signals on that jobs are sent, and when the child has ended kills
 * whatever is left below, removes folder (tmpdir.h; borrowed), and ends as the child did: by the
 * same code or signal. So who started this process sees no difference, and of head, agent and
 * guardian any two may be killed at once. To be called while the process has one thread. 0, or
 * -ERR_UNAVAILABLE; the guardian never returns. */
int guardian_fork(const char *dir, pid_t *guardian, struct error *err);

#endif
