/* Made by python -m tools.pages of broker.routing.mirrored: change it there. */

#define NEVER_USED 0
#define ASKING_BOTH 1
#define FIRST_DECLINED 2
#define SECOND_DECLINED 3
#define BOTH_DECLINED 4
#define FIRST_PRINCIPAL 5
#define SECOND_PRINCIPAL 6
#define CLAIMS_HIGHER 0
#define CLAIMS_EQUAL 1
#define CLAIMS_LOWER 2
#define DENIES 3
#define LOST 4
#define is_asking (standing == ASKING_BOTH || standing == FIRST_DECLINED || standing == SECOND_DECLINED || standing == BOTH_DECLINED)
#define is_principal_of(who) ((standing == FIRST_PRINCIPAL && (who) == 0) || (standing == SECOND_PRINCIPAL && (who) == 1))
#define begin_use() if :: standing == NEVER_USED -> standing = ASKING_BOTH :: else fi

inline hear(who, word) {
    if
    :: (who) == 0 && (word) == CLAIMS_HIGHER ->
        if
        :: standing == ASKING_BOTH -> standing = FIRST_PRINCIPAL
        :: standing == FIRST_DECLINED -> standing = FIRST_PRINCIPAL
        :: standing == SECOND_DECLINED -> standing = FIRST_PRINCIPAL
        :: standing == BOTH_DECLINED -> standing = FIRST_PRINCIPAL
        :: standing == SECOND_PRINCIPAL -> standing = FIRST_PRINCIPAL
        :: else
        fi
    :: (who) == 0 && (word) == CLAIMS_EQUAL ->
        if
        :: standing == ASKING_BOTH -> standing = FIRST_PRINCIPAL
        :: standing == FIRST_DECLINED -> standing = FIRST_PRINCIPAL
        :: standing == SECOND_DECLINED -> standing = FIRST_PRINCIPAL
        :: standing == BOTH_DECLINED -> standing = FIRST_PRINCIPAL
        :: else
        fi
    :: (who) == 0 && (word) == CLAIMS_LOWER ->
        if
        :: standing == ASKING_BOTH -> standing = FIRST_DECLINED
        :: standing == SECOND_DECLINED -> standing = BOTH_DECLINED
        :: standing == FIRST_PRINCIPAL -> standing = FIRST_DECLINED
        :: else
        fi
    :: (who) == 0 && (word) == DENIES ->
        if
        :: standing == ASKING_BOTH -> standing = FIRST_DECLINED
        :: standing == SECOND_DECLINED -> standing = BOTH_DECLINED
        :: standing == FIRST_PRINCIPAL -> standing = FIRST_DECLINED
        :: else
        fi
    :: (who) == 0 && (word) == LOST ->
        if
        :: standing == ASKING_BOTH -> standing = FIRST_DECLINED
        :: standing == SECOND_DECLINED -> standing = BOTH_DECLINED
        :: standing == FIRST_PRINCIPAL -> standing = FIRST_DECLINED
        :: else
        fi
    :: (who) == 1 && (word) == CLAIMS_HIGHER ->
        if
        :: standing == ASKING_BOTH -> standing = SECOND_PRINCIPAL
        :: standing == FIRST_DECLINED -> standing = SECOND_PRINCIPAL
        :: standing == SECOND_DECLINED -> standing = SECOND_PRINCIPAL
        :: standing == BOTH_DECLINED -> standing = SECOND_PRINCIPAL
        :: standing == FIRST_PRINCIPAL -> standing = SECOND_PRINCIPAL
        :: else
        fi
    :: (who) == 1 && (word) == CLAIMS_EQUAL ->
        if
        :: standing == ASKING_BOTH -> standing = SECOND_PRINCIPAL
        :: standing == FIRST_DECLINED -> standing = SECOND_PRINCIPAL
        :: standing == SECOND_DECLINED -> standing = SECOND_PRINCIPAL
        :: standing == BOTH_DECLINED -> standing = SECOND_PRINCIPAL
        :: else
        fi
    :: (who) == 1 && (word) == CLAIMS_LOWER ->
        if
        :: standing == ASKING_BOTH -> standing = SECOND_DECLINED
        :: standing == FIRST_DECLINED -> standing = BOTH_DECLINED
        :: standing == SECOND_PRINCIPAL -> standing = SECOND_DECLINED
        :: else
        fi
    :: (who) == 1 && (word) == DENIES ->
        if
        :: standing == ASKING_BOTH -> standing = SECOND_DECLINED
        :: standing == FIRST_DECLINED -> standing = BOTH_DECLINED
        :: standing == SECOND_PRINCIPAL -> standing = SECOND_DECLINED
        :: else
        fi
    :: (who) == 1 && (word) == LOST ->
        if
        :: standing == ASKING_BOTH -> standing = SECOND_DECLINED
        :: standing == FIRST_DECLINED -> standing = BOTH_DECLINED
        :: standing == SECOND_PRINCIPAL -> standing = SECOND_DECLINED
        :: else
        fi
    fi
}
