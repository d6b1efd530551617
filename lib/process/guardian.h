/* SPDX-License-Identifier: BSD-3-Clause */
/* The guardian process is the agent's parent and outlives it. If the agent is killed together with
 * the controller, nothing else would end processes that ranks have put into sessions of their
 * own. */
#ifndef BERTH_PROCESS_GUARDIAN_H
#define BERTH_PROCESS_GUARDIAN_H

#include <sys/types.h>

#include "base/error.h"

/* Fork: the caller continues in the child, in a new session, and learns the guardian's pid. The
 * parent stays as the guardian. Of the caller's descriptors it holds lock_fd only, so dir stays
 * locked as long as a process is left (-1: none). It adopts orphaned descendants, and forwards the
 * signals that jobs receive. When the child has ended, the guardian kills all remaining
 * descendants, runs the command of guardian_at_end, removes dir (tmpdir.h; borrowed), and exits as
 * the child did: with the same code or by the same signal.
 *
 * So the process that started this one sees no difference. The controller may be killed
 * together with either of agent and guardian; both of these only if the agent is its child. Call
 * this while the process has one thread. Return 0 or -ERR_UNAVAILABLE; the guardian itself never
 * returns. */
int guardian_fork(const char *dir, int lock_fd, pid_t *guardian, int *at_end_fd, struct error *err);
/* Add words to the command line that the guardian runs in the end, for a few seconds: it ends what
 * outlasts the processes, after SIGKILL of whoever could. It is in the pipe *at_end_fd of
 * guardian_fork, and not in dir, where a program in a container may write what it likes. Return 0
 * or -ERR_OUTPUT. */
int guardian_at_end(int fd, const char *const *words, struct error *err);

#endif
