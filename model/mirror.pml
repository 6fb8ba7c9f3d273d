/*
 * One gateway, or endpoint, that sends to a mirrored pair, while the pair fails over, crashes and is cut off.
 *
 * The two instances of a pair share one file; whoever writes it does so in its own epoch or not at all. What an instance
 * believes of itself may be old: it learns late. A file for each of them, which something replicates, is not in the model:
 * there the epoch of the other file keeps nobody from writing, but the time for which a role holds (`mirroring =
 * "command"`, broker.routing.mirrored), and no time is in the model.
 *
 *   in the model              in the code
 *   -----------------------   -------------------------------------------------------------------------------------
 *   standing, hear()          broker.routing.mirrored.MirrorState, TRANSITIONS; standing.pml is made of that table
 *   believed                  broker.routing.mirrored.MirroredRoute, its epoch
 *   file_epoch, file_owner    the epoch of the file, and who has it: broker.store.sqlite.role_file, broker.store.sqlite.file_identity
 *   role, epoch               broker.routing.mirrored.OwnRole: what it believes of itself
 *   take_over()               broker.daemon.roles: Act.TAKE
 *   step_down()               Act.STEP_DOWN, or a write that is refused because the epoch is another one
 *   stored                    the database: broker_conversation.receive_sequence
 *   PROBE, REPLY              PROBE, PROBE_REPLY: docs/protocol.md
 *   ACCEPT, REJECT            ACK; REJECTED with 28018
 *   Cut                       a link that breaks: everything on it is gone, both ends learn it
 *
 * Checked: nothing is written by an instance that is not the owner, nor in an epoch below one that was believed; what
 * is acknowledged is in the file of whoever owns it; nothing twice or out of order; and once nobody crashes, fails over
 * or is cut off any more, everything arrives.
 */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef FAILOVERS
#define FAILOVERS 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef CUTS
#define CUTS 1
#endif

/* Faults that the checks must find, for a model that cannot fail proves nothing: 1 writes are not fenced; 2 a refusal
   changes nothing, and nobody is asked again; 3 acknowledged before it is written. */
#ifndef FAULT
#define FAULT 0
#endif

#include "standing.pml"

mtype = { PROBE, FRAME, REPLY, ACCEPT, REJECT };

chan to[2] = [1] of { mtype, byte };            /* PROBE; FRAME, sequence */
chan from[2] = [1] of { mtype, bit, byte };     /* REPLY, role, epoch; ACCEPT, 0, next; REJECT */

byte file_epoch = 1, file_owner = 0, stored = 0;
bit role[2];                                    /* 1 = it believes to be the principal */
byte epoch[2];
bit tells[2];                                   /* its role has changed, and who has asked is to be told */
byte standing = NEVER_USED, believed = 0, acked = 0;
byte failovers = FAILOVERS, crashes = CRASHES, cuts = CUTS;

#define is_done (acked == MESSAGES)
#define owner_works (role[file_owner] && epoch[file_owner] == file_epoch)

inline take_over(who) {
    file_epoch++;
    file_owner = who;
    epoch[who] = file_epoch;
    role[who] = 1;
    tells[who] = 1
}

inline step_down() { role[me] = 0; tells[me] = 1 }

/* An instance of the pair. */
proctype Partner(bit me) {
    byte number = 0;
end:
    do
    :: atomic { to[me] ? [PROBE, _] && nfull(from[me]) -> to[me] ? PROBE, _; from[me] ! REPLY, role[me], epoch[me] }
    :: atomic {
        to[me] ? [FRAME, _] && nfull(from[me]) ->
        to[me] ? FRAME, number;
        if
        :: role[me] && (epoch[me] == file_epoch || FAULT == 1) ->
            assert(file_owner == me && epoch[me] == file_epoch);
            assert(epoch[me] >= believed);
            if
            :: number == stored && FAULT != 3 -> stored++
            :: number != stored || FAULT == 3 -> skip   /* a duplicate: acknowledged again */
            fi;
            if
            :: FAULT != 3 -> from[me] ! ACCEPT, 0, stored
            :: FAULT == 3 -> from[me] ! ACCEPT, 0, number + 1
            fi
        :: role[me] && epoch[me] != file_epoch && FAULT != 1 ->
            step_down();                        /* fenced: it finds out by the write that fails */
            from[me] ! REJECT, 0, 0
        :: !role[me] -> from[me] ! REJECT, 0, 0
        fi;
        number = 0
    }
    :: atomic { tells[me] && nfull(from[me]) -> tells[me] = 0; from[me] ! REPLY, role[me], epoch[me] }
    :: atomic { role[me] && epoch[me] != file_epoch -> step_down() }   /* it is told, sooner or later */
    od
}

/* Who decides: an administrator, or whatever watches the pair. */
proctype Keeper() {
end:
    do
    :: atomic { failovers > 0 -> failovers--; if :: take_over(0) :: take_over(1) fi }
    :: atomic { !owner_works -> if :: take_over(0) :: take_over(1) fi }
    od
}

inline cut(who) {
    do
    :: to[who] ? _, _
    :: empty(to[who]) -> break
    od;
    do
    :: from[who] ? _, _, _
    :: empty(from[who]) -> break
    od;
    hear(who, LOST)
}

proctype Crash(bit me) {
end:
    do
    :: atomic { crashes > 0 -> crashes--; role[me] = 0; tells[me] = 0; cut(me) }
    :: atomic { cuts > 0 -> cuts--; cut(me) }
    od
}

inline weigh(who, is_principal, its_epoch) {
    if
    :: !is_principal -> hear(who, DENIES)
    :: is_principal && its_epoch > believed ->
        if
        :: standing != NEVER_USED -> believed = its_epoch
        :: else
        fi;
        hear(who, CLAIMS_HIGHER)
    :: is_principal && its_epoch == believed -> hear(who, CLAIMS_EQUAL)
    :: is_principal && its_epoch < believed -> hear(who, CLAIMS_LOWER)
    fi
}

/* The prober hears what one of them says. */
proctype Hear(bit which) {
    bit claim = 0;
    byte number = 0;
end:
    do
    :: atomic { from[which] ? [REPLY, _, _] -> from[which] ? REPLY, claim, number; weigh(which, claim, number); claim = 0; number = 0 }
    :: atomic {
        from[which] ? [ACCEPT, _, _] -> from[which] ? ACCEPT, claim, number;
        assert(number <= stored);               /* what is acknowledged is in the file */
        if
        :: number > acked -> acked = number
        :: else
        fi;
        claim = 0; number = 0
    }
    :: atomic {
        from[which] ? [REJECT, _, _] -> from[which] ? REJECT, claim, number;
        if
        :: FAULT != 2 -> hear(which, DENIES)
        :: FAULT == 2 -> skip
        fi;
        claim = 0; number = 0
    }
    od
}

/* The prober asks. */
proctype Ask(bit which) {
end:
    do
    :: atomic { standing == NEVER_USED -> begin_use() }
    :: atomic { is_asking && nfull(to[which]) -> to[which] ! PROBE, 0 }
    od
}

/* The prober sends the first message that is not acknowledged, to whom it takes for the principal. */
proctype Send(bit which) {
end:
    do
    :: atomic { is_principal_of(which) && !is_done && nfull(to[which]) -> to[which] ! FRAME, acked }
    od
}

init {
    atomic {
        role[0] = 1; epoch[0] = 1;
        run Partner(0); run Partner(1);
        run Hear(0); run Hear(1);
        run Ask(0); run Ask(1);
        run Send(0); run Send(1);
        run Keeper();
        run Crash(0); run Crash(1)
    }
}

ltl all_arrives { <> is_done }
